// What modules.c loads and blocks.c runs.
#pragma once
#include "fake.h"
#include "ptx/ptx.h"

struct launched {  // one launch of a kernel from PTX
    int references;
    const struct module *kernel_of;
    const struct kernel *kernel;
    u32 grid[3], block[3], shared;
    char parameters[];
};
extern struct launched *running;
