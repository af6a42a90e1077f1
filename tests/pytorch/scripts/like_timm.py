"""The layout of timm's training script: two parsers, a logger, helpers for the epoch, a checkpoint of the best."""

import argparse
import logging
import os
import time
from collections import OrderedDict
from contextlib import suppress
from functools import partial

import torch
import torch.nn as nn

_logger = logging.getLogger("train")
config_parser = argparse.ArgumentParser(description="Training Config", add_help=False)
config_parser.add_argument("-c", "--config", default="", type=str, metavar="FILE")
parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
group = parser.add_argument_group("Model parameters")
group.add_argument("--model", default="small", type=str, metavar="MODEL")
group.add_argument("--num-classes", type=int, default=100, metavar="N")
group.add_argument("--img-size", type=int, default=32, metavar="N")
group.add_argument("-b", "--batch-size", type=int, default=32, metavar="N")
group = parser.add_argument_group("Device & distributed")
group.add_argument("--device", default="cuda", type=str)
group.add_argument("--amp", action="store_true", default=False)
group.add_argument("--channels-last", action="store_true", default=False)
group = parser.add_argument_group("Optimizer parameters")
group.add_argument("--opt", default="sgd", type=str, metavar="OPTIMIZER")
group.add_argument("--lr", type=float, default=0.1, metavar="LR")
group.add_argument("--momentum", type=float, default=0.9, metavar="M")
group.add_argument("--weight-decay", type=float, default=2e-5)
group.add_argument("--clip-grad", type=float, default=None, metavar="NORM")
group.add_argument("--epochs", type=int, default=300, metavar="N")
group.add_argument("--model-ema", action="store_true", default=False)
group = parser.add_argument_group("Misc")
group.add_argument("--seed", type=int, default=42, metavar="S")
group.add_argument("--log-interval", type=int, default=50, metavar="N")
group.add_argument("--workers", "-j", type=int, default=4, metavar="N")
group.add_argument("--output", default="", type=str, metavar="PATH")


class AverageMeter:
    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class FakeImages(torch.utils.data.Dataset):
    def __init__(self, size, classes):
        self.size, self.classes = size, classes

    def __len__(self):
        return 640

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        return torch.rand(3, self.size, self.size, generator=g), torch.randint(self.classes, (), generator=g)


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.act = nn.ReLU(inplace=True)
        self.down = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        out = self.act(self.bn1(self.conv1(x)))
        return self.act(self.bn2(self.conv2(out)) + self.down(x))


class SmallResNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        widths = [int(w) for w in torch.linspace(32, 128, 4)]
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1)
        self.blocks = nn.Sequential(*(Block(a, b, 2) for a, b in zip(widths, widths[1:])))
        self.head = nn.Linear(widths[-1], num_classes)
        self.apply(partial(self._init_weights, scale=0.02))

    @staticmethod
    def _init_weights(module, scale):
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=scale)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def _parse_args():
    args_config, remaining = config_parser.parse_known_args()
    if args_config.config:
        with open(args_config.config) as f:
            parser.set_defaults(**dict(line.strip().split(": ") for line in f))
    args = parser.parse_args(remaining)
    return args, "\n".join(f"{k}: {v}" for k, v in sorted(vars(args).items()))


def create_optimizer(args, model):
    decay, no_decay = [], []
    for param in model.parameters():
        (no_decay if param.ndim <= 1 else decay).append(param)
    groups = [{"params": no_decay, "weight_decay": 0.0}, {"params": decay, "weight_decay": args.weight_decay}]
    if args.opt == "adamw":
        return torch.optim.AdamW(groups, lr=args.lr)
    return torch.optim.SGD(groups, lr=args.lr, momentum=args.momentum, nesterov=True)


def main():
    logging.basicConfig(level=logging.INFO)
    args, args_text = _parse_args()
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    device = torch.device(args.device)
    _logger.info(f"Training with a single process on 1 device ({device}).")
    torch.manual_seed(args.seed)
    model = SmallResNet(args.num_classes)
    _logger.info(f"Model {args.model} created, param count:{sum(m.numel() for m in model.parameters())}")
    model.to(device=device)
    if args.channels_last:
        model.to(memory_format=torch.channels_last)
    optimizer = create_optimizer(args, model)
    amp_autocast = partial(torch.autocast, device_type=device.type, dtype=torch.float16) if args.amp else suppress
    loss_scaler = torch.amp.GradScaler(device=device.type) if args.amp else None
    model_ema = torch.optim.swa_utils.AveragedModel(model) if args.model_ema else None
    dataset = FakeImages(args.img_size, args.num_classes)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=True,
        drop_last=True,
        persistent_workers=args.workers > 0,
    )
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1).to(device=device)
    best_metric = None
    for epoch in range(args.epochs):
        metrics = train_one_epoch(
            epoch, model, loader, optimizer, loss_fn, args, device, amp_autocast, loss_scaler, model_ema
        )
        lr_scheduler.step()
        if best_metric is None or metrics["loss"] < best_metric:
            best_metric = metrics["loss"]
            torch.save(model.state_dict(), os.path.join(args.output, "model_best.pth.tar"))


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, device, amp_autocast, loss_scaler, model_ema):
    losses_m = AverageMeter()
    model.train()
    start = time.time()
    for batch_idx, (input, target) in enumerate(loader):
        input, target = input.to(device=device), target.to(device=device)
        if args.channels_last:
            input = input.contiguous(memory_format=torch.channels_last)
        with amp_autocast():
            output = model(input)
            loss = loss_fn(output, target)
        if loss_scaler is not None:
            loss_scaler.scale(loss).backward()
            if args.clip_grad is not None:
                loss_scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
            loss_scaler.step(optimizer)
            loss_scaler.update()
        else:
            loss.backward()
            if args.clip_grad is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
            optimizer.step()
        if model_ema is not None:
            model_ema.update_parameters(model)
        optimizer.zero_grad()
        torch.cuda.synchronize()
        losses_m.update(loss.item(), input.size(0))
        if batch_idx % args.log_interval == 0:
            rate = input.size(0) / max(time.time() - start, 1e-9)
            lr = sum(group["lr"] for group in optimizer.param_groups) / len(optimizer.param_groups)
            _logger.info(
                f"Train: {epoch} [{batch_idx:>4d}/{len(loader)}] Loss: {losses_m.avg:#.3g} {rate:.1f}/s {lr:.3e}"
            )
    return OrderedDict([("loss", losses_m.avg)])


if __name__ == "__main__":
    main()
