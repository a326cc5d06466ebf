"""A lossless sampler that speaks JSON lines, with faults to choose: what test_adapters.py runs as another program."""

import json
import random
import sys
import time


def probabilities(rows):
    """From logits (null for −∞), row by row."""
    import math

    return [[[0.0 if x is None else math.exp(x) for x in row] for row in block] for block in rows]


def draw(law, rng):
    u, total = rng.random() * sum(law), 0.0
    for x, mass in enumerate(law):
        total += mass
        if u < total:
            return x
    return max(x for x, mass in enumerate(law) if mass > 0)


def verify(drafts, p, q, rng, fault):
    for i, x in enumerate(drafts):
        if rng.random() * q[i][x] >= p[i][x]:
            rest = [max(a - b, 0.0) for a, b in zip(p[i], q[i], strict=True)]
            law = p[i] if fault == "resample-p" or sum(rest) < 1e-12 else rest
            return [*drafts[:i], draw(law, rng)], i
    return [*drafts, draw(p[len(drafts)], rng)], len(drafts)


def main(fault):
    for line in sys.stdin:
        request = json.loads(line, parse_constant=lambda name: sys.exit(f"{name} is not JSON"))
        if fault == "crash":
            sys.exit("out of memory, say")
        if fault == "silent":
            print("thinking", file=sys.stderr, flush=True)
            time.sleep(60)
        if fault == "report":
            print(json.dumps({"id": request["id"], "error": "no such model"}), flush=True)
            continue
        if fault == "garbage":
            print("Hello!", flush=True)
            continue
        if fault == "no counts":
            print(json.dumps({"id": request["id"], "tokens": []}), flush=True)
            continue
        rng = random.Random(0 if fault == "own seed" else request["seed"])
        p = request["target_probs"] if "target_probs" in request else probabilities(request["target_logits"])
        q = request["draft_probs"] if "draft_probs" in request else probabilities(request["draft_logits"])
        rows = [verify(x, p[b], q[b], rng, fault) for b, x in enumerate(request["draft_ids"])]
        answer = {
            "id": request["id"] + (fault == "late"),
            "tokens": [t for t, _ in rows],
            "accepted": [a for _, a in rows],
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
