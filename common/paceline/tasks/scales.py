# SPDX-License-Identifier: Apache-2.0
"""Mean and deviation of each channel's pixels, 0..255, over the training images. Knows neither numpy nor torch."""

from __future__ import annotations

PIXEL_MEAN, PIXEL_STD = 33.318, 78.567  # of MNIST
SCALES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((PIXEL_MEAN,), (PIXEL_STD,)),
    "fashion-mnist": ((72.94,), (90.02,)),
    "cifar10": ((125.307, 122.961, 113.8575), (51.5865, 50.847, 51.255)),  # the paper's, smaller than the true spread
    "cifar100": ((129.304, 124.070, 112.434), (68.170, 65.392, 70.418)),
}
