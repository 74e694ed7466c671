"""An LSTM over packed sequences of several lengths."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(200, 64, padding_idx=0)
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 5)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        return self.head(hidden[-1])


def collate(samples):
    lengths = torch.tensor([len(sample) for sample in samples])
    labels = torch.tensor([int(sample[0]) % 5 for sample in samples])
    return pad_sequence(samples, batch_first=True), lengths, labels


torch.manual_seed(0)
samples = [torch.randint(1, 200, (int(n),)) for n in torch.randint(5, 40, (1000,))]
loader = torch.utils.data.DataLoader(samples, batch_size=32, shuffle=True, collate_fn=collate)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(500):
    for tokens, lengths, labels in loader:
        loss = nn.functional.cross_entropy(model(tokens, lengths), labels)
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
    print(epoch, loss.item())
