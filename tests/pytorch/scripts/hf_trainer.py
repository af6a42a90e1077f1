"""A causal language model by Hugging Face's Trainer."""

from dataclasses import dataclass, field

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    layers: int = field(default=2)
    width: int = field(default=64)


class Blocks(torch.utils.data.Dataset):
    def __init__(self, count, length, vocabulary):
        self.tokens = torch.randint(0, vocabulary, (count, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        ids = self.tokens[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    config = GPT2Config(vocab_size=1000, n_positions=64, n_embd=model_args.width, n_layer=model_args.layers, n_head=4)
    model = GPT2LMHeadModel(config)
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=Blocks(200, 64, config.vocab_size),
        eval_dataset=Blocks(20, 64, config.vocab_size),
    )
    trainer.train()
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main()
