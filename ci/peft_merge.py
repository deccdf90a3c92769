"""Time and peak memory of ``ltx2c.peft.merge`` beside ``merge_and_unload``, each in a process of its own, in turn.

    python ci/peft_merge.py [ROUNDS]

The model is 1.07 GB of bfloat16, 32 Linear of 4096 x 4096, with one adapter of rank 64 that PEFT holds in float32.
Needs PEFT; ``ci/peft.sh ROUNDS`` makes an environment with it. Not in CI.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
import warnings

WAYS = ("ltx2c", "peft")


def measure(way: str) -> dict[str, float]:
    """Build the model, merge it one way: seconds, and how far the peak of memory rose meanwhile, in MB."""
    warnings.simplefilter("ignore")
    import peft
    import torch
    from torch import nn

    import ltx2c.peft

    torch.manual_seed(0)
    with torch.no_grad():
        model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False, dtype=torch.bfloat16) for _ in range(32)))
        names = [str(number) for number in range(32)]
        model = peft.get_peft_model(model, peft.LoraConfig(r=64, target_modules=names, init_lora_weights=False))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.perf_counter()
        ltx2c.peft.merge(model) if way == "ltx2c" else model.merge_and_unload()
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "peak_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def main(rounds: int) -> None:
    results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            done = subprocess.run([sys.executable, __file__, way], check=True, capture_output=True, text=True)
            results[way].append(json.loads(done.stdout.splitlines()[-1]))
    for way in WAYS:
        seconds, peak = (statistics.median(run[name] for run in results[way]) for name in ("seconds", "peak_mb"))
        print(f"{way:6} {seconds:6.2f} s, {peak:6.0f} MB above the model")


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in WAYS:
        print(json.dumps(measure(sys.argv[1])))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 5)
