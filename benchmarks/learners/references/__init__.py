"""The published formulas of analytic learners, each written again in float64 NumPy. Nothing here imports neverseen.

Every class takes features and labels phase by phase (``learn``), and answers with ``scores`` and ``predict``. Where the
method carries a state from phase to phase, ``state()`` gives it: most often ``(R, W)``, the inverse of the regularised
Gram matrix and the weights. Each docstring names the paper, the public code that was read, and every deviation from it.
The formulas were read there; no line was taken over. Commits read:

=========================================== =======
ZHUANGHP/Analytic-continual-learning        0afd6bf
CHEN-YIZHU/GACL                             fc21369
asdasdczxczq/TS-ACL                         03cbbd7
RanPAC/RanPAC                               012927f
ZHUANGHP/Analytic-federated-learning        1e7c2d9
liuyuchen-cz/F-OAL, WhereIsYuuka/F-OAL      73e4ac1, 4780df3
scut-zx/L3A                                 1067bbd
qwrawq/SegACIL, Ruiter578/CFSSeg            f6cb765, 087fa5e
tyler-hayes/Deep_SLDA                       bc15797
=========================================== =======

Labels of any type are columns in the order in which they first came.
"""

from benchmarks.learners.references.embeddings import Kernel, Projection, identity
from benchmarks.learners.references.gaussian import LDA, Mahalanobis, NearestMean
from benchmarks.learners.references.learner import Learner, NothingLearnedError, Weighted
from benchmarks.learners.references.recursive import ACIL, FOAL, GACL, GKEAL, TSACL, CFSSeg, Recursive
from benchmarks.learners.references.streams import DSAL, FinalResidual
from benchmarks.learners.references.sums import AFL, AIR, L3A, RanPAC, Ridge

__all__ = [
    "ACIL",
    "AFL",
    "AIR",
    "DSAL",
    "FOAL",
    "GACL",
    "GKEAL",
    "L3A",
    "LDA",
    "TSACL",
    "CFSSeg",
    "FinalResidual",
    "Kernel",
    "Learner",
    "Mahalanobis",
    "NearestMean",
    "NothingLearnedError",
    "Projection",
    "RanPAC",
    "Recursive",
    "Ridge",
    "Weighted",
    "identity",
]
