"""Probing: what a way of reading, or a stage of training, did to a model. Each probe answers one question without training the model.

    words        how much of each word's part of speech, chunk or entity do its states tell? (a linear probe on frozen states)
    prefixes     does the state of a token use what follows it? (exactly not, under causal attention); stages: after each stage of training
    geometry     are paraphrases close, and all texts spread over the sphere?
    masked       does the model fill gaps, the way MNTP trains it to?
    states       how much does each state change when attention becomes bidirectional?
    layers       how does a text's vector change from layer to layer, and what does each score?
    attribution  which layers does a trained head over layers read?
    clusters     do two readings, such as hidden states and routing weights, group texts alike? topics: what the groups are about
    prompts      how much do similarities change with the prompt?
    winners      which pairs does one reading rank right and another wrong?

From LLM2Vec (arXiv 2404.05961): words, prefixes, masked, states. From Pooling and Attention (arXiv 2409.02727): layers, attribution. From
MoEE (arXiv 2410.10814): clusters, prompts, winners. From Wang and Isola (arXiv 2005.10242): geometry. A result is a frozen dataclass;
`as_json()` gives it with everything that it depends on.
"""
