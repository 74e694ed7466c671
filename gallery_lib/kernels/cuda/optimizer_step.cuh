// What all optimizers share: one pass over many tensors in which an element's weight, gradient and states are read
// once and written once. A rule says what happens to one element, in fp32.
//
// ELEMENT is the type of weights and gradients. States are fp32. Four elements an access: 16 bytes of fp32, 8 of the
// 16-bit types; a tensor of which any part is not aligned to that goes element by element.
//
// A step whose found_inf is not 0 leaves everything as it was.
#pragma once
#include "scalars.cuh"
#include "tensor_list.cuh"
#include "vectors.cuh"

enum List { WEIGHT, GRADIENT, STATE, STEP = STATE + 3, LISTS };
enum Flag { DECOUPLED = 1, NESTEROV = 2, MAXIMIZE = 4 };

constexpr int WIDTH = 4;
constexpr int SCALARS = 4;

struct StepArguments {
    TensorList<LISTS> tensors;
    const float* gradient_scale;  // all three may be null
    const float* found_inf;
    const float* learning_rate_on_device;
    double* partial;              // LAMB: |w|² and |update|² of each block
    float* trust_ratio;           // LAMB: of each tensor
    double learning_rate, weight_decay, beta1, beta2, log_beta1, log_beta2, epsilon, momentum;
    int flags;

    __device__ __forceinline__ bool skips() const { return found_inf && *found_inf != 0.0f; }
    __device__ __forceinline__ double rate() const { return learning_rate_on_device ? *learning_rate_on_device : learning_rate; }
    __device__ __forceinline__ double step(int tensor) const { return *static_cast<const float*>(tensors.pointers[STEP][tensor]); }
    __device__ __forceinline__ bool has(int list, int tensor) const { return tensors.pointers[list][tensor] != nullptr; }

    // What a gradient is multiplied by before anything else.
    __device__ __forceinline__ float gradient_factor() const {
        float factor = 1.0f;
        if (gradient_scale) factor /= *gradient_scale;
        return flags & MAXIMIZE ? -factor : factor;
    }
};

// 1 - beta^step, without the cancellation that a beta near 1 brings.
static __device__ __forceinline__ double bias_correction(double log_beta, double step) { return -expm1(step * log_beta); }

template <int COUNT>
static __device__ __forceinline__ Vector<float, COUNT> load_weights(const StepArguments& a, int tensor, long long at) {
    auto elements = load_vector<COUNT>(static_cast<const ELEMENT*>(a.tensors.pointers[WEIGHT][tensor]) + at);
    Vector<float, COUNT> result;
    for (int lane = 0; lane < COUNT; lane++) result.at[lane] = to_float(elements.at[lane]);
    return result;
}

template <int COUNT>
static __device__ __forceinline__ void store_weights(const StepArguments& a, int tensor, long long at, const Vector<float, COUNT>& value) {
    Vector<ELEMENT, COUNT> elements;
    for (int lane = 0; lane < COUNT; lane++) from_float(value.at[lane], elements.at[lane]);
    store_vector(static_cast<ELEMENT*>(a.tensors.pointers[WEIGHT][tensor]) + at, elements);
}

// COUNT elements of a tensor, from `at`.
template <int COUNT, class Rule>
static __device__ __forceinline__ void visit(const StepArguments& a, int tensor, long long at, float factor, Rule& rule) {
    Vector<float, COUNT> weights = load_weights<COUNT>(a, tensor, at), states[3];
    Vector<ELEMENT, COUNT> gradients;
    if (Rule::READS_GRADIENT) gradients = load_vector<COUNT>(static_cast<const ELEMENT*>(a.tensors.pointers[GRADIENT][tensor]) + at);
    for (int s = 0; s < Rule::STATES; s++)
        if (a.has(STATE + s, tensor)) states[s] = load_vector<COUNT>(static_cast<const float*>(a.tensors.pointers[STATE + s][tensor]) + at);
    for (int lane = 0; lane < COUNT; lane++) {
        float gradient = Rule::READS_GRADIENT ? to_float(gradients.at[lane]) * factor : 0.0f;
        rule(weights.at[lane], gradient, states[0].at[lane], states[1].at[lane], states[2].at[lane]);
    }
    if (Rule::WRITES_WEIGHT) store_weights<COUNT>(a, tensor, at, weights);
    if (Rule::READS_GRADIENT)
        for (int s = 0; s < Rule::STATES; s++)
            if (a.has(STATE + s, tensor)) store_vector(static_cast<float*>(a.tensors.pointers[STATE + s][tensor]) + at, states[s]);
}

static __device__ __forceinline__ bool all_aligned(const StepArguments& a, const Chunk& chunk) {
    bool aligned = is_aligned<WIDTH>(static_cast<const ELEMENT*>(a.tensors.pointers[WEIGHT][chunk.tensor])) &&
                   is_aligned<WIDTH>(static_cast<const ELEMENT*>(a.tensors.pointers[GRADIENT][chunk.tensor]));
    for (int list = STATE; list < STEP; list++)
        aligned = aligned && is_aligned<WIDTH>(static_cast<const float*>(a.tensors.pointers[list][chunk.tensor]));
    return aligned;
}

// All elements of a block's chunk. Every thread of the block calls it.
template <class Rule>
static __device__ __forceinline__ void visit_chunk(const StepArguments& a, const Chunk& chunk, Rule& rule) {
    float factor = a.gradient_factor();
    int in_vectors = all_aligned(a, chunk) ? chunk.size / WIDTH * WIDTH : 0;
    for (int i = threadIdx.x * WIDTH; i < in_vectors; i += THREADS * WIDTH) visit<WIDTH>(a, chunk.tensor, chunk.start + i, factor, rule);
    for (int i = in_vectors + threadIdx.x; i < chunk.size; i += THREADS) visit<1>(a, chunk.tensor, chunk.start + i, factor, rule);
}

// The whole of an optimizer that needs one pass. What depends on the step count is worked out by one thread, in fp64.
template <class Rule>
static __device__ __forceinline__ void one_pass(const StepArguments& a, float (&scalars)[SCALARS]) {
    if (a.skips()) return;
    Chunk chunk = chunk_of_block(a.tensors);
    if (threadIdx.x == 0) Rule::prepare(a, chunk.tensor, scalars);
    __syncthreads();
    Rule rule(a, chunk.tensor, scalars);
    visit_chunk(a, chunk, rule);
}
