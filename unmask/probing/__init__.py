"""Probes: questions to a model that do not train it. Each module answers one question; probes compute, and draw nothing.

    command      module              question
    words        word_probe          How much do the states of a word tell of its part of speech, chunk or entity?
    prefix       prefixes            Does the state of a token use what follows it, after each stage of training?
    geometry     geometry            Are paraphrases close, and are texts spread over the sphere?
    masked       masked              Does the model fill gaps, as MNTP trains it to?
    states       state_change        How much does each state change when attention becomes bidirectional?
    layers       layers              How do vectors change from layer to layer, and what does each layer score?
    head         attribution         Which layers does a trained head over layers read?
    clusters     clusters            Do two designs form the same clusters of texts, and what are the clusters about?
    prompts      prompt_sensitivity  How much do similarities change with the prompt?
    pairs        won_pairs           Which pairs does one design rank right and another wrong?

From LLM2Vec (arXiv 2404.05961): words, prefix, masked, states. From Pooling and Attention (arXiv 2409.02727): layers, head. From
MoEE (arXiv 2410.10814): clusters, prompts, pairs. From Wang and Isola (arXiv 2005.10242): geometry. A result is a frozen dataclass.
The commands `routing` and `experts` are in `unmask/moe/routing`.
`as_json()` gives the result with everything that it depends on.
"""
