from tests.conftest import TEXTS
def test_smoke(pico):
    e=pico("causal/eol/last"); v=e.encode(TEXTS); assert v.shape==(6,64)
    e=pico("causal/eol/last/sum:auto/zscore",family="olmoe"); v=e.encode(TEXTS); assert v.shape==(6,64+24)
