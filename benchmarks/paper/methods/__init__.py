"""The unlearning methods compared: one file each, all behind `benchmarks.paper.methods.interface.Method`."""

from benchmarks.paper.methods.acu import ACUFloat32, ACUFloat64
from benchmarks.paper.methods.acu_as_written import ACUAsWritten
from benchmarks.paper.methods.finetune import Finetune
from benchmarks.paper.methods.interface import Method, Request, Samples, Start, request_for, settings_of
from benchmarks.paper.methods.l1_sparsity import L1Sparsity
from benchmarks.paper.methods.neggrad import NegGrad
from benchmarks.paper.methods.neggrad_plus import NegGradPlus
from benchmarks.paper.methods.neverseen_exact import NeverseenExact, NeverseenQueued
from benchmarks.paper.methods.original import Original
from benchmarks.paper.methods.random_label import RandomLabel
from benchmarks.paper.methods.retrain import Retrain
from benchmarks.paper.methods.scrub import SCRUB
from benchmarks.paper.methods.woodfisher import WoodFisher

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Original,
        Retrain,
        Finetune,
        L1Sparsity,
        NegGrad,
        NegGradPlus,
        SCRUB,
        WoodFisher,
        RandomLabel,
        ACUFloat32,
        ACUFloat64,
        ACUAsWritten,
        NeverseenExact,
        NeverseenQueued,
    )
}

__all__ = ["METHODS", "Method", "Request", "Samples", "Start", "request_for", "settings_of"]
