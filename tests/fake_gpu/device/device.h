// A CUDA device that is not there: what its parts share.
//
// The library built from this folder takes the place of libcudart and libcuda (LD_PRELOAD). Device
// memory is host memory. Work that is enqueued on a stream waits in the stream's queue and runs as
// late as waiting allows, or in another order that a test asks for (streams.cpp).
#pragma once
#include <cuda.h>
#undef cudaGetDeviceProperties
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace fake {

// Piece of work on the device. It returns the error that the next wait reports, or cudaSuccess.
using Work = std::function<cudaError_t()>;

// What a captured graph does, in the order of its capture, and the kernels in it.
struct Graph {
    std::vector<Work> work;
    std::map<std::string, long> kernels;
    long times = 0;  // launches of the graph since the last reset
};

// A capture that is under way. Streams join it by waiting for an event of one that is in it.
struct Capture {
    unsigned long long number;
    std::shared_ptr<Graph> graph = std::make_shared<Graph>();
    std::vector<struct Stream*> streams;
    bool invalid = false;  // something was asked of its streams that no graph can have
};

struct Stream {
    int device = 0;
    int priority = 0;
    bool of_device = false;           // the stream that a device has from the start
    std::deque<Work> queue;           // what has not run yet
    uint64_t enqueued = 0, done = 0;  // pieces of work since the stream was made
    std::shared_ptr<Capture> capture;
};

// A place in a stream's work. It is reached when the stream has done `position` pieces.
struct Mark {
    Stream* stream = nullptr;
    uint64_t position = 0;
};

struct Event {
    Mark mark;
    // Of the device's clock, when its stream came to it; negative before.
    std::shared_ptr<double> milliseconds = std::make_shared<double>(-1);
    std::shared_ptr<Capture> capture;
    int queries = 0;
};

constexpr const char* NAME = "Fake H100";

extern std::recursive_mutex lock;  // of all that is declared here; never held while work runs

int devices();
int current_device();
int architecture(int device);  // 90 for compute capability 9.0, unless FAKE_GPU_ARCHITECTURES says otherwise
void make_current(int device);

Stream* stream_of(void* handle);           // null and the special handles: that of the current device
cudaError_t enqueue(Stream*, Work);        // or add it to the capture that the stream is in
cudaError_t run_until(Mark);               // and whatever the work before it waits for
cudaError_t wait_for_device(int device);   // all that is enqueued on its streams
void forget_failures();
cudaError_t wait_of_the_host(const char* name, Stream*);  // counts; refused where waiting is forbidden

const char* kind_of_memory(const void*, int* device);  // "device", "pinned" or null

void count(const std::string& what);     // a call of the API
void launched(const std::string& what, Stream*);  // a kernel; in a capture, each time the graph runs
std::shared_ptr<Graph> with_counted_kernels(const Graph&);  // a copy that the report knows
void note_use(const char* what);             // CUDA, by this process: "driver", "properties" or "context"

}  // namespace fake
