from tests.runtime.fakes import *
from tilejit.language import T
def test_x():
    def k(X: T.Tensor(("M","N"),"float32"), Y: T.Tensor(("M","N"),"float32"), alpha: T.float32, n: T.int32, W: T.constexpr=4): pass
    kk = jit(k)
    with gpu() as g:
        x,y=cuda_tensor(4,8),cuda_tensor(4,8,address=0x20000)
        kk(x,y,2.0,3); kk(x,y,2.0,n=3)
        kk(x,y,2.0,5)
        print(kk._dispatch.source); print(g.recorder.launches)
        assert len(kk._steps.compiled)==1
