# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with ranks of unequal speed, for scripts of your own: batches, gradients, measured shares.

sampler = UnevenBatchSampler(len(data), batch=256)
reporter = RoundReporter(model, sampler)          # model: a DistributedDataParallel
for epoch in range(10):
    sampler.set_epoch(epoch)
    for x, y in reporter.steps(DataLoader(data, batch_sampler=sampler)):
        ...                                       # forward, mean loss, backward, optimiser step: as ever
    sampler.set_shares(reporter.end_round())
"""

from paceline.torch.gradients import SampleMean, scale_loss
from paceline.torch.reporter import RoundFigures, RoundReporter
from paceline.torch.sampler import UnevenBatchSampler, collate_with_empty

__all__ = [
    "RoundFigures",
    "RoundReporter",
    "SampleMean",
    "UnevenBatchSampler",
    "collate_with_empty",
    "scale_loss",
]
