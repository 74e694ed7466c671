"""What other ways of averaging gradients send, what they gain where the network is the limit, and whether training still learns.

`ways` lets them take turns in the same processes (on a lab: `ranks` starts them there), `bucket_times` notes the buckets of a step,
`wire_bytes` computes what is sent, and `convergence` trains `digits` with every wire format.
"""
