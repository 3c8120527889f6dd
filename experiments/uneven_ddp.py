# SPDX-License-Identifier: Apache-2.0
# Uneven batches in a script of your own: torchrun --standalone --nproc-per-node=2 experiments/uneven_ddp.py
# With PACELINE_HOST=/etc/paceline/operator.toml the shares come from that `paceline host`, else from the script itself.
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.torch import RoundReporter, UnevenBatchSampler
from paceline_host.host_controller import HostController


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        time.sleep(2e-5 * len(x) * (3 if dist.get_rank() == 0 else 1))  # rank 0 stands for a slow board
        return self.layers(x)


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(2048, 8)
data = TensorDataset(x, x.sum(dim=1, keepdim=True))
model = nn.parallel.DistributedDataParallel(Network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = UnevenBatchSampler(len(data), batch=128)
loader = DataLoader(data, batch_sampler=sampler)
on_host = "PACELINE_HOST" in os.environ
host = HostController("uneven-ddp", sampler.world, sampler.budget, minimum=sampler.least_share) if on_host else None
reporter = RoundReporter(model, sampler, host)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for inputs, targets in reporter.steps(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)  # a plain mean: the hook makes it the union's
        loss.backward()
        optimizer.step()
    sampler.set_shares(reporter.end_round())
    if dist.get_rank() == 0:
        forward = reporter.figures.forward
        print(f"epoch {epoch}: loss {loss:.4f}, CV of forward {forward.step_cv:.2f}, shares {sampler.shares}")
dist.destroy_process_group()
