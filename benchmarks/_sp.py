import numpy as np, time, sys
from benchmarks.engine import class_clustered_codes, GAMMA
from neverseen.hardware import choose
from neverseen.holdings import FORGET, LEARN, Change
from neverseen.labels import LabelIndex
from neverseen.model.configuration import Configuration
from neverseen.model.exact import ExactModel
from neverseen.encoding import Identity
from neverseen.proof.keys import Key
from neverseen.engine.solver import solve
d=int(sys.argv[1]); hw=choose(sys.argv[2] if len(sys.argv)>2 else "numpy"); N=int(sys.argv[3]) if len(sys.argv)>3 else 4000
codes,labels=class_clustered_codes(N,d,100,0)
m=ExactModel.in_memory(Configuration(Identity(),GAMMA,40),d,Key(bytes(32)),hw)
m.apply(Change(LEARN,codes,LabelIndex(labels.tolist()))); m.weights()
at=0; bad=0
for n in [1]*6+[20]*6+[1,3,400,1,20,400,63,64,1]:
    t=time.perf_counter()
    m.apply(Change(FORGET,codes[at:at+n],LabelIndex(labels[at:at+n].tolist()))); t1=time.perf_counter(); w=m.weights(); t2=time.perf_counter(); at+=n
    kind=type(m.solution()).__name__
    s=m.statistics
    import copy
    if len(sys.argv)>4:
        print(n,kind,f"{1e3*(t1-t):.1f} {1e3*(t2-t1):.1f} ms",flush=True); continue
    st=copy.deepcopy(s,{id(hw):hw}); ref=solve(st.gram,st.cross_here(),GAMMA,hardware=hw).weights
    diff=int((ref!=w).sum()); bad+=diff
    print(n,kind,f"{1e3*(t1-t):.1f} {1e3*(t2-t1):.1f} ms differ",diff, f"doubt {np.log2(max((m.solution().residuals/GAMMA+m.solution().slips).max(),1e-30)):.1f}" if kind=="Following" else "",flush=True)
print("bad",bad)
