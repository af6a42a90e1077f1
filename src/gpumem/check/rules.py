"""What the oracles hold results against: each rule's short code, which a `CheckError` bears, and its line."""

from __future__ import annotations

RULES = {
    # a placement
    "offsets": "a placement has one offset for each buffer, none for one on the host",
    "alignment": "an offset is a multiple of the alignment, from 0 on",
    "height": "every buffer ends within the pool's height",
    "overlap": "no two buffers share a byte at one time",
    # bytes held
    "budget": "live bytes stay within the limit, on the device and on the host; a job's within its budget",
    "capacity": "all that is held, or granted to jobs, stays within the capacity",
    # values
    "ops": "every stream runs each recorded op once, in the order of the original",
    "value": "every op reads the value that its original reads",
    "lost value": "a value that crosses the boundary of an iteration is kept, and is the original's",
    # time
    "duration": "every op and every copy takes the time it should",
    "start": "an op starts once its engine is free and its hazards are over, no earlier and no later",
    "issue": "an op is issued when its host has come to it, in the order of the trace; while the host is off none is",
    "wait": "an op's wait is the time that its engine stood idle for it",
    "cause": "an op that waits says for what: the host, or the copy that held it, where its issue came last",
    "cycle": "the steady state repeats where the timeline says so",
    "makespan": "the makespan is that of the steady state",
    # several jobs in one trace
    "dependence": "of two ops of a job that touch one buffer, one of them writing, the first one stays first",
    "slot": "an op starts when all ops of earlier slots have ended, on every stream",
    "turn": "a node group runs in the slot and on the stream of its turn in the pipeline, alone there",
    # the log of jobs
    "time": "time does not run backwards",
    "event": "an event is of a known kind, of a known job and buffer, and has that buffer's size",
    "life": "a job arrives, is launched and leaves; it leaves and changes its plan between two iterations",
    "order": "each iteration runs each op once, in issue order, one after another",
    "host launch": "a job's kernel starts when its own host has enqueued it, or later when what it waits for is there",
    "held": "what an op or a copy touches or a job frees is held; what is held is held once, and freed before the end",
    "link": "an engine copies one buffer at a time; every copy that begins ends, every one that is awaited begins",
    "race": "nobody reads, writes or frees bytes that another one writes, nor writes or frees those that one reads",
}
