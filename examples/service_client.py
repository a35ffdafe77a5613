"""Run the service, and use it from Python: learn, predict, forget, and check the certificate yourself.

Needs the extras `service` and `client`.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from sklearn.datasets import load_digits

from neverseen import AnalyticClassifier, ForgettingModel, RandomProjection
from neverseen.backbones import Precomputed
from neverseen.client import Client

X, y = load_digits(return_X_y=True)
X, labels = X[:100], [str(digit) for digit in y[:100]]
folder = Path(tempfile.mkdtemp()) / "shop"


def neverseen(*words: str) -> str:
    """Run a command of the package, as in a shell, and return its output."""
    command = [sys.executable, "-m", "neverseen.cli", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


about = json.loads(neverseen("init", str(folder), "--backbone", "features:64", "--codes", "256", "--json"))
token = neverseen("keys", "add", str(folder), "app", "--scope", "learn", "--scope", "predict", "--scope", "forget")

command = [sys.executable, "-m", "neverseen.cli", "serve", str(folder), "--port", "0", "--max-delay", "0"]
with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
    assert service.stderr is not None
    try:
        address = next(line for line in service.stderr if line.startswith("console and API")).split()[-1]
        with Client(address, token) as client:
            learned = client.learn(X, labels, owner="ada")  # on disk when it returns
            client.wait(learned)  # until predictions come from a model with these samples
            print("predicted", client.predict(X[:5]).labels, "for", labels[:5])

            request = client.wait(client.forget(learned.receipts[:20]))
            certificate = client.certificate(request.certificate or 0)
            # This check runs here, with the public key that `init` printed. The receipt is not sent.
            client.check(certificate, public_key=about["public_key"], receipt=learned.receipts[0])
            print(f"certificate {certificate.number} lists the receipt as forgotten")
            digest = client.model().digest
    finally:
        service.terminate()

never = ForgettingModel(Precomputed(64), AnalyticClassifier(RandomProjection(256)))
never.learn(X[20:], labels[20:])
assert digest == never.digest()
print(f"equal to the model that never saw them: {digest}")
