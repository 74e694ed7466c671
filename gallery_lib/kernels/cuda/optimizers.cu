// SGD, RMSprop, AdamW and RAdam as torch defines them, each in one pass over all tensors (see optimizer_step.cuh).
#include "optimizer_step.cuh"

// Before the step, once for each launch: counts a step that is done.
extern "C" __global__ void __launch_bounds__(THREADS) advance(const __grid_constant__ StepArguments a) {
    for (unsigned tensor = threadIdx.x; tensor < a.tensors.count; tensor += THREADS)
        if (a.has(STEP, tensor) && !a.skips()) *static_cast<float*>(a.tensors.pointers[STEP][tensor]) += 1.0f;
}

// State 0: momentum buffer, null without momentum. It starts at 0, which gives the first step that torch takes.
struct SGD {
    static constexpr int STATES = 1;
    static constexpr bool READS_GRADIENT = true, WRITES_WEIGHT = true;
    float rate, decay, momentum;
    bool has_momentum, nesterov;

    static __device__ void prepare(const StepArguments& a, int, float (&scalars)[SCALARS]) { scalars[0] = float(a.rate()); }

    __device__ SGD(const StepArguments& a, int tensor, const float (&scalars)[SCALARS])
        : rate(scalars[0]), decay(float(a.weight_decay)), momentum(float(a.momentum)), has_momentum(a.has(STATE, tensor)),
          nesterov(a.flags & NESTEROV) {}

    __device__ __forceinline__ void operator()(float& weight, float gradient, float& buffer, float&, float&) const {
        if (decay != 0.0f) gradient += decay * weight;  // 0 · inf is NaN
        if (has_momentum) {
            buffer = momentum * buffer + gradient;
            gradient = nesterov ? gradient + momentum * buffer : buffer;
        }
        weight -= rate * gradient;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) sgd(const __grid_constant__ StepArguments a) {
    __shared__ float scalars[SCALARS];
    one_pass<SGD>(a, scalars);
}

// beta2 is torch's alpha. State 0: average of squares; 1: momentum buffer or null; 2: average of gradients or null.
struct RMSprop {
    static constexpr int STATES = 3;
    static constexpr bool READS_GRADIENT = true, WRITES_WEIGHT = true;
    float rate, decay, keep, take, epsilon, momentum;
    bool has_momentum, centered;

    static __device__ void prepare(const StepArguments& a, int, float (&scalars)[SCALARS]) { scalars[0] = float(a.rate()); }

    __device__ RMSprop(const StepArguments& a, int tensor, const float (&scalars)[SCALARS])
        : rate(scalars[0]), decay(float(a.weight_decay)), keep(float(a.beta2)), take(float(1 - a.beta2)), epsilon(float(a.epsilon)),
          momentum(float(a.momentum)), has_momentum(a.has(STATE + 1, tensor)), centered(a.has(STATE + 2, tensor)) {}

    __device__ __forceinline__ void operator()(float& weight, float gradient, float& square, float& buffer, float& average) const {
        if (decay != 0.0f) gradient += decay * weight;  // 0 · inf is NaN
        square = keep * square + take * gradient * gradient;
        float variance = square;
        if (centered) {
            average += take * (gradient - average);
            variance -= average * average;
        }
        float update = gradient / (sqrtf(variance) + epsilon);
        if (has_momentum) update = buffer = momentum * buffer + update;
        weight -= rate * update;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) rmsprop(const __grid_constant__ StepArguments a) {
    __shared__ float scalars[SCALARS];
    one_pass<RMSprop>(a, scalars);
}

// State 0: average of gradients; 1: average of squares.
struct AdamW {
    static constexpr int STATES = 2;
    static constexpr bool READS_GRADIENT = true, WRITES_WEIGHT = true;
    float shrink, take1, keep2, take2, epsilon, rate, root_factor;

    static __device__ void prepare(const StepArguments& a, int tensor, float (&scalars)[SCALARS]) {
        scalars[0] = float(a.rate() / bias_correction(a.log_beta1, a.step(tensor)));
        scalars[1] = float(rsqrt(bias_correction(a.log_beta2, a.step(tensor))));
        scalars[2] = float(1 - a.rate() * a.weight_decay);
    }

    __device__ AdamW(const StepArguments& a, int, const float (&scalars)[SCALARS])
        : shrink(scalars[2]), take1(float(1 - a.beta1)), keep2(float(a.beta2)), take2(float(1 - a.beta2)), epsilon(float(a.epsilon)),
          rate(scalars[0]), root_factor(scalars[1]) {}

    __device__ __forceinline__ void operator()(float& weight, float gradient, float& average, float& square, float&) const {
        average += take1 * (gradient - average);
        square = keep2 * square + take2 * gradient * gradient;
        weight = weight * shrink - rate * (average / (sqrtf(square) * root_factor + epsilon));
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) adamw(const __grid_constant__ StepArguments a) {
    __shared__ float scalars[SCALARS];
    one_pass<AdamW>(a, scalars);
}

// States as AdamW's. Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", 2020, with torch's threshold.
struct RAdam {
    static constexpr int STATES = 2;
    static constexpr bool READS_GRADIENT = true, WRITES_WEIGHT = true;
    float shrink, decay, take1, keep2, take2, epsilon, rate;
    bool adaptive;

    static __device__ void prepare(const StepArguments& a, int tensor, float (&scalars)[SCALARS]) {
        double step = a.step(tensor), correction2 = bias_correction(a.log_beta2, step);
        double rho_inf = 2 / (1 - a.beta2) - 1, rho = rho_inf - 2 * step * (1 - correction2) / correction2;
        double rate = a.rate() / bias_correction(a.log_beta1, step);
        scalars[1] = rho > 5;
        if (rho > 5) rate *= sqrt(correction2 * (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho));
        scalars[0] = float(rate);
        scalars[2] = float(1 - a.rate() * a.weight_decay);
    }

    __device__ RAdam(const StepArguments& a, int, const float (&scalars)[SCALARS])
        : shrink(a.flags & DECOUPLED ? scalars[2] : 1.0f), decay(a.flags & DECOUPLED ? 0.0f : float(a.weight_decay)),
          take1(float(1 - a.beta1)), keep2(float(a.beta2)), take2(float(1 - a.beta2)), epsilon(float(a.epsilon)), rate(scalars[0]),
          adaptive(scalars[1] != 0.0f) {}

    __device__ __forceinline__ void operator()(float& weight, float gradient, float& average, float& square, float&) const {
        if (decay != 0.0f) gradient += decay * weight;  // 0 · inf is NaN
        average += take1 * (gradient - average);
        square = keep2 * square + take2 * gradient * gradient;
        weight = weight * shrink - rate * (adaptive ? average / (sqrtf(square) + epsilon) : average);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) radam(const __grid_constant__ StepArguments a) {
    __shared__ float scalars[SCALARS];
    one_pass<RAdam>(a, scalars);
}
