"""Learn a folder of images, one subfolder for each class; then forget one person's images by their receipts.

Needs the extra `images`. Give it your own folder, with files such as `cat/ada-14.png` (class `cat`, owner `ada`).
Without one, it makes a folder of 60 handwritten digits.
"""

import sys
import tempfile
from pathlib import Path

from neverseen import ForgettingModel


def digits(folder: Path) -> Path:
    """Write 60 images of digits: `3/ada-14.png` is a 3 that Ada drew."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    for row in range(60):
        place = folder / str(found.target[row])
        place.mkdir(exist_ok=True)
        pixels = (found.images[row] * 15).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{'ada' if row < 10 else 'ben'}-{row}.png")
    return folder


folder = Path(sys.argv[1]) if len(sys.argv) > 1 else digits(Path(tempfile.mkdtemp()))
paths = sorted(folder.glob("*/*.png"))
labels = [path.parent.name for path in paths]  # the subfolder is the class
ids = [path.relative_to(folder).as_posix() for path in paths]
owners = [path.name.partition("-")[0] for path in paths]

model = ForgettingModel()  # EfficientNet-Lite0, pre-trained on ImageNet
receipts = model.learn(paths, labels, ids=ids, owners=owners)
print(f"learned {len(model)} images of {len(model.classes_)} classes")

# Ada wants her images forgotten. Her receipts are enough: no image and no network is needed.
hers = [receipt for receipt, owner in zip(receipts, owners, strict=True) if owner == owners[0]]
model.forget(hers)
print(f"forgot {len(hers)} images of {owners[0]}; {len(model)} are left")

# A model that never saw them.
others = [row for row, owner in enumerate(owners) if owner != owners[0]]
never = ForgettingModel(model.backbone)
never.learn([paths[row] for row in others], [labels[row] for row in others])
assert model.digest() == never.digest()
print(f"equal to the model that never saw them: {model.digest()}")
