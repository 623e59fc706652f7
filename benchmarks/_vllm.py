"""vLLM: `PYTHON _vllm.py MODEL REPEATS < texts.json` prints the best seconds of a mean-pooled encode, after a warm-up."""

import json
import sys
import time

if __name__ == "__main__":  # vLLM starts processes, which import this file
    from vllm import LLM
    from vllm.config import PoolerConfig

    texts, times = json.load(sys.stdin), []
    llm = LLM(
        model=sys.argv[1],
        runner="pooling",
        convert="embed",
        pooler_config=PoolerConfig(seq_pooling_type="MEAN"),
        dtype="bfloat16",
        max_model_len=512,
        enforce_eager=True,
        gpu_memory_utilization=0.3,  # of memory, on a CPU as well
    )
    for _ in range(int(sys.argv[2]) + 1):
        begin = time.perf_counter()
        llm.embed(texts, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 512})
        times.append(time.perf_counter() - begin)
    print(f"seconds {min(times[1:])}")
