"""transformers.Trainer on a small BERT that is made from a configuration."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(1000, (32,), generator=generator)
        return {"input_ids": tokens, "labels": tokens[0] % 2}


config = BertConfig(
    vocab_size=1000,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=256,
)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=16,
    num_train_epochs=20,
    logging_steps=20,
    report_to=[],
    use_cpu=not torch.cuda.is_available(),
    save_steps=200,
)
Trainer(BertForSequenceClassification(config), arguments, train_dataset=Texts()).train()
