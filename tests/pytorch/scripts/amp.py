"""Mixed precision with GradScaler."""

import torch
import torch.nn as nn

assert torch.cuda.is_available(), "needs a GPU"
torch.backends.cudnn.benchmark = True


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Random(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, i):
        return torch.rand(3, 32, 32), i % 10


net = nn.Sequential(
    conv_block(3, 32),
    conv_block(32, 64),
    nn.MaxPool2d(2),
    conv_block(64, 128),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(128, 10),
).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
scaler = torch.amp.GradScaler("cuda")
loader = torch.utils.data.DataLoader(Random(), batch_size=32, num_workers=4, pin_memory=True, drop_last=True)

for epoch in range(5):
    for images, targets in loader:
        images, targets = images.cuda(non_blocking=True), targets.cuda(non_blocking=True)
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            output = net(images)
            loss = nn.functional.cross_entropy(output, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
    print(epoch, loss.item(), scaler.get_scale(), f"{torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
