"""Learn texts from a CSV file, sort new ones, and forget the texts of one customer.

Needs the extra `text`.
"""

import csv
import io

from neverseen import AnalyticClassifier, ForgettingModel, RandomProjection
from neverseen.backbones import minilm

FILE = """customer,topic,text
ada,card,My new card has not arrived yet
ada,card,The card was declined at the till
ben,card,How do I activate my bank card?
ben,card,The machine kept my card
eva,transfer,I sent money to the wrong account
eva,transfer,How long does a transfer abroad take?
ada,transfer,My transfer is still pending
ben,transfer,Can I cancel a transfer?
eva,password,I cannot remember my password
ada,password,The app does not accept my passcode
ben,password,How do I reset my password?
eva,password,I am locked out of my account
"""

rows = list(csv.DictReader(io.StringIO(FILE)))  # or: open("letters.csv", newline="")
texts = [row["text"] for row in rows]
topics = [row["topic"] for row in rows]
customers = [row["customer"] for row in rows]

# Few samples need a smaller gamma: see docs/how-to/gamma.md.
settings = AnalyticClassifier(RandomProjection(512), gamma=2**10)
model = ForgettingModel(minilm(), settings)  # all-MiniLM-L6-v2, pre-trained on sentence pairs
receipts = model.learn(texts, topics, owners=customers)
for question in ("Where is my card?", "I forgot my password"):
    print(f"{question} -> {model.predict([question])[0]}")

# Ada leaves. Her receipts are enough: nobody needs her texts again.
model.forget([receipt for receipt in receipts if model.read_receipt(receipt)["owner"] == "ada"])
print(f"{len(model)} of {len(rows)} texts are left")

kept = [row for row, customer in enumerate(customers) if customer != "ada"]
never = ForgettingModel(model.backbone, settings)
never.learn([texts[row] for row in kept], [topics[row] for row in kept])
assert model.digest() == never.digest()
print(f"equal to the model that never read them: {model.digest()}")
