"""Graph passes of ours that run inside Inductor, most of them for CPUs.

`channels_last`, on all devices, lays convolutions out inside the graph alone. `emulated_bf16`
widens bfloat16 products where the CPU has no bfloat16 units. `short_attention` computes short
sequences as batched products. `small_convolutions` computes convolutions over few positions as
matrix products. `mixed_products` multiplies few rows by weights as they lie in fp32.
`large_batch_norms` computes batch norms over large images in C++; for measurements, all of them, on
CUDA too. `two_gradients` lets our batch norm add up gradients. `dropout_masks` draws dropout's
random numbers by vector instructions. `max_pooling` pools images in C++. `vector_masks` reads and
writes masks by vector instructions. `upsampling` keeps torch's own enlargement operators.
`graph_writer` reads calls off a graph and writes new ones. `kept_graphs`, on all devices, lets
backward passes keep their graphs.
"""
