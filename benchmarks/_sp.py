import numpy as np, time, sys, statistics
from benchmarks.engine import class_clustered_codes, GAMMA, recursion, _eye, _linalg
from neverseen.hardware import choose
from neverseen.holdings import FORGET, LEARN, Change
from neverseen.labels import LabelIndex
from neverseen.model.configuration import Configuration
from neverseen.model.exact import ExactModel
from neverseen.encoding import Identity
from neverseen.proof.keys import Key
from neverseen.engine.solver import solve
from neverseen.engine import following as fm
d=int(sys.argv[1]); hw=choose(sys.argv[2]); N=int(sys.argv[3])
sync=(lambda: None)
if hw.name=="cuda":
    import torch; sync=torch.cuda.synchronize
codes,labels=class_clustered_codes(N,d,100,0)
m=ExactModel.in_memory(Configuration(Identity(),GAMMA,40),d,Key(bytes(32)),hw)
m.apply(Change(LEARN,codes,LabelIndex(labels.tolist())))
t=time.perf_counter(); m.weights(); sync(); print("solve",1e3*(time.perf_counter()-t))
F=hw.float64(hw.array(codes)); Y=hw.array(np.eye(100)[labels])
A=F.T@F+GAMMA*_eye(d,F); T=_linalg(A).inv(A); T=(T+T.T)/2; W=_linalg(A).solve(A,F.T@Y)
anew=[0]; orig=fm.Following._anew
def noted(self,*a):
    anew[0]+=1; return orig(self,*a)
fm.Following._anew=noted
at=0
for n,R in ((1,25),(20,15),(400,5)):
    a=[];b=[]; anew[0]=0
    for k in range(R):
        q=slice(at,at+n); at+=n
        ch=Change(FORGET,codes[q],LabelIndex(labels[q].tolist()))
        sync(); time.sleep(0.05); t=time.perf_counter(); m.apply(ch); w=m.weights(); sync(); a.append(time.perf_counter()-t)
        ts=[]
        time.sleep(0.05)
        for _ in range(2):
            sync(); t=time.perf_counter(); T1,W1=recursion(T,W,F[q],Y[q]); sync(); ts.append(time.perf_counter()-t)
        T,W=T1,W1; b.append(min(ts))
    a,b=np.array(a[2:])*1e3,np.array(b[2:])*1e3
    print(f"d={d} {hw.name} n={n}: exact {np.median(a):.2f} min {a.min():.2f} recursion {np.median(b):.2f} min {b.min():.2f} ratio {np.median(a/b):.2f} mean {a.sum()/b.sum():.2f} anew {anew[0]} {type(m.solution()).__name__}",flush=True)
s=m.statistics
print("differ",int((solve(s.gram,s.cross_here(),GAMMA,hardware=hw).weights!=w).sum()))
if len(sys.argv)>4:
    import cProfile,pstats
    for n in (1,20,400):
        p=cProfile.Profile(); p.enable()
        for _ in range(6):
            q=slice(at,at+n); at+=n; m.apply(Change(FORGET,codes[q],LabelIndex(labels[q].tolist()))); m.weights()
        p.disable(); pstats.Stats(p).sort_stats("tottime").print_stats(14)
