// LAMB: You et al., "Large Batch Optimization for Deep Learning", 2020. The length of a tensor's update is set by the
// tensor's own norm, so it takes three launches: moments and norms; a ratio for each tensor; the update, computed a
// second time from the moments, which is cheaper than keeping it.
#include "optimizer_step.cuh"
#include "sum_of_squares.cuh"

struct Direction {
    float factor1, root_factor, decay, epsilon;

    static __device__ void prepare(const StepArguments& a, int tensor, float (&scalars)[SCALARS]) {
        scalars[0] = float(1 / bias_correction(a.log_beta1, a.step(tensor)));
        scalars[1] = float(rsqrt(bias_correction(a.log_beta2, a.step(tensor))));
    }

    __device__ Direction(const StepArguments& a, const float (&scalars)[SCALARS])
        : factor1(scalars[0]), root_factor(scalars[1]), decay(float(a.weight_decay)), epsilon(float(a.epsilon)) {}

    __device__ __forceinline__ float operator()(float weight, float average, float square) const {
        return average * factor1 / (sqrtf(square) * root_factor + epsilon) + decay * weight;
    }
};

struct Moments {
    static constexpr int STATES = 2;
    static constexpr bool READS_GRADIENT = true, WRITES_WEIGHT = false;
    Direction direction;
    float take1, keep2, take2;
    SumOfSquares weights, updates;

    __device__ Moments(const StepArguments& a, const float (&scalars)[SCALARS])
        : direction(a, scalars), take1(float(1 - a.beta1)), keep2(float(a.beta2)), take2(float(1 - a.beta2)) {}

    __device__ __forceinline__ void operator()(float weight, float gradient, float& average, float& square, float&) {
        average += take1 * (gradient - average);
        square = keep2 * square + take2 * gradient * gradient;
        weights.add(weight);
        updates.add(direction(weight, average, square));
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) lamb_moments(const __grid_constant__ StepArguments a) {
    __shared__ float scalars[SCALARS];
    __shared__ double scratch[2][THREADS / 32];
    if (a.skips()) return;
    Chunk chunk = chunk_of_block(a.tensors);
    if (threadIdx.x == 0) Direction::prepare(a, chunk.tensor, scalars);
    __syncthreads();
    Moments moments(a, scalars);
    visit_chunk(a, chunk, moments);
    double weights = block_sum(moments.weights.total(), scratch[0]), updates = block_sum(moments.updates.total(), scratch[1]);
    if (threadIdx.x == 0) {
        a.partial[2 * blockIdx.x] = weights;
        a.partial[2 * blockIdx.x + 1] = updates;
    }
}

// One block for each tensor, an empty one included.
extern "C" __global__ void __launch_bounds__(THREADS) lamb_trust_ratios(const __grid_constant__ StepArguments a) {
    __shared__ double scratch[2][THREADS / 32];
    if (a.skips()) return;
    double weights = 0, updates = 0;
    for (unsigned block = a.tensors.first_block[blockIdx.x] + threadIdx.x; block < a.tensors.first_block[blockIdx.x + 1]; block += THREADS) {
        weights += a.partial[2 * block];
        updates += a.partial[2 * block + 1];
    }
    weights = block_sum(weights, scratch[0]);
    updates = block_sum(updates, scratch[1]);
    if (threadIdx.x == 0) a.trust_ratio[blockIdx.x] = weights > 0 && updates > 0 ? float(sqrt(weights / updates)) : 1.0f;
}

struct Update {
    static constexpr int STATES = 2;
    static constexpr bool READS_GRADIENT = false, WRITES_WEIGHT = true;
    Direction direction;
    float rate;

    __device__ __forceinline__ void operator()(float& weight, float, float average, float square, float&) const {
        weight -= rate * direction(weight, average, square);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) lamb_update(const __grid_constant__ StepArguments a) {
    __shared__ float scalars[SCALARS];
    if (a.skips()) return;
    Chunk chunk = chunk_of_block(a.tensors);
    if (threadIdx.x == 0) Direction::prepare(a, chunk.tensor, scalars);
    __syncthreads();
    Update update{Direction(a, scalars), float(a.rate() * a.trust_ratio[chunk.tensor])};
    visit_chunk(a, chunk, update);
}
