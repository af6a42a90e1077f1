"""A LightningModule and its Trainer."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(L.LightningModule):
    def __init__(self, width=256, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 16))
        self.decoder = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 784))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        noise = 0.1 * torch.randn(x.shape, device=self.device)
        loss = F.mse_loss(self.decoder(self.encoder(x + noise)), x)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        self.log("val_loss", F.mse_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def main():
    L.seed_everything(0)
    data = TensorDataset(torch.rand(640, 1, 28, 28), torch.randint(0, 10, (640,)))
    train, val = torch.utils.data.random_split(data, [512, 128])
    trainer = L.Trainer(max_epochs=3, accelerator="gpu", devices=1, logger=False, gradient_clip_val=1.0)
    trainer.fit(Autoencoder(), DataLoader(train, batch_size=64, shuffle=True), DataLoader(val, batch_size=64))


if __name__ == "__main__":
    main()
