"""A softmax classifier in numpy that draws its batches from Forebay over Arrow Flight.

Run it against a root (an embedded server is started where none runs) or a server:

    python examples/digits/train.py --root data/demo
    python examples/digits/train.py --server grpc://127.0.0.1:7070
"""

import argparse
import time

import forebay
import numpy as np


class Softmax:
    """Multinomial logistic regression by gradient descent with momentum."""

    def __init__(self, features: int, classes: int, rate: float = 0.12, momentum: float = 0.9):
        self.weights = np.zeros((features + 1, classes))
        self.velocity = np.zeros_like(self.weights)
        self.rate, self.momentum = rate, momentum

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Class probabilities of uint8 images, shape (rows, classes)."""
        flat = images.reshape(len(images), -1) / 240.0
        logits = np.c_[flat, np.ones(len(flat))] @ self.weights
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        """One update; returns the mean cross-entropy before it."""
        rows = np.arange(len(labels))
        p = self.scores(images)
        loss = -np.log(np.maximum(p[rows, labels], 1e-12)).mean()
        p[rows, labels] -= 1
        flat = images.reshape(len(images), -1) / 240.0
        gradient = np.c_[flat, np.ones(len(flat))].T @ p / len(labels)
        self.velocity = self.momentum * self.velocity + gradient
        self.weights -= self.rate * self.velocity
        return float(loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="a root to open embedded")
    parser.add_argument("--server", help="a running server, grpc://host:port")
    parser.add_argument("--job", default="digits-train")
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    with forebay.connect(args.server, root=args.root) as client:
        stored = len(client.dataset("digits").epochs)
        loader = client.loader("digits", job=args.job, batch_size=args.batch_size, epochs=args.passes, seed=7)
        model = Softmax(64, 10)
        print("pass  epoch  batches   rows  loss   held-out accuracy  rows/s")
        accuracy = 0.0
        for number in range(args.passes):
            started, losses, rows, held_out = time.perf_counter(), [], 0, []
            for batch in loader:
                rows += len(batch["label"])
                train = batch["split"] == "train"
                # The held-out rows of the pass are kept aside and scored after it: the model never learns from them.
                held_out.append((batch["image"][~train], batch["label"][~train]))
                losses.append(model.step(batch["image"][train], batch["label"][train]))
            images, labels = (np.concatenate(part) for part in zip(*held_out))
            accuracy = float((model.scores(images).argmax(axis=1) == labels).mean())
            rate = rows / (time.perf_counter() - started)
            print(
                f"{number:4}  {number % stored:5}  {len(losses):7}  {rows:5}  {np.mean(losses):.3f}"
                f"  {accuracy:17.1%}  {rate:,.0f}"
            )
        loader.close()
    if accuracy < 0.92:
        raise SystemExit(f"held-out accuracy {accuracy:.1%} is below the 92 % that these digits allow")


if __name__ == "__main__":
    main()
