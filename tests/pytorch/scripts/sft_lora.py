"""Supervised fine-tuning of a Llama with LoRA, by TRL and peft."""

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer


def build_tokenizer():
    words = {word: k for k, word in enumerate(["<pad>", "</s>", "<unk>", *(f"w{k}" for k in range(500))])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def build_trainer():
    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    dataset = Dataset.from_dict({"text": [" ".join(f"w{(i * 7 + j) % 500}" for j in range(31)) for i in range(128)]})
    return SFTTrainer(
        model=LlamaForCausalLM(config),
        args=SFTConfig(
            output_dir="out",
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_length=64,
            num_train_epochs=1,
            learning_rate=2e-4,
            bf16=True,
            logging_steps=1,
            save_strategy="epoch",
            report_to="none",
        ),
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )


if __name__ == "__main__":
    trainer = build_trainer()
    trainer.train()
    trainer.save_model("out/final")
