# SPDX-License-Identifier: Apache-2.0
"""Random crops and flips that follow from (seed, epoch, sample) alone: whoever holds a sample makes the same image.

Sample i takes the first block of the stream (seed, PURPOSE_AUGMENT, epoch, i): x0 says how far down, x1 how far right
(the high half of word * places; the bias is below 2^-30), the top bit of x2 whether it is flipped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.core import PURPOSE_AUGMENT, philox

EDGE = 1  # pixels of zeros around the image, of which it is cut anew


def augmented(images: NDArray[np.uint8], samples: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.uint8]:
    """Return images (n, channels, rows, columns) of these samples, moved by up to EDGE pixels, maybe flipped."""
    _, _, rows, columns = images.shape
    padded = np.pad(images, ((0, 0), (0, 0), (EDGE, EDGE), (EDGE, EDGE)))
    out = np.empty_like(images)
    key = (seed & 0xFFFFFFFF, seed >> 32)
    for place, sample in enumerate(samples.tolist()):
        down, right, flip, _ = philox((0, sample, epoch, PURPOSE_AUGMENT), key)
        top, left = down * (2 * EDGE + 1) >> 32, right * (2 * EDGE + 1) >> 32
        image = padded[place, :, top : top + rows, left : left + columns]
        out[place] = image[:, :, ::-1] if flip >> 31 else image
    return out
