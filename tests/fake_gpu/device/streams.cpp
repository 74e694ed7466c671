// Streams, events and captured graphs.
//
// A device may run the work of different streams in any order that the events between them allow.
// A program that forgot to wait is right in some of these orders and wrong in others. So the order
// is chosen to bring it out (FAKE_GPU_ORDER, or fake_gpu_order):
//
//   late       all work waits until somebody waits for it
//   early      work of the streams that a program makes runs at once; that of the device's own
//              stream waits until somebody waits for it
//   random:N   after each piece of work, streams drawn from the seed N run part of their work
//
// The device's clock is not the host's: each piece of work takes a second of it. An event has the
// time at which its stream comes to it, and none before.
#include "device.h"

#include <dlfcn.h>

#include <algorithm>
#include <random>
#include <set>

namespace fake {

std::recursive_mutex lock;

namespace {

std::recursive_mutex running;  // held by the one thread that runs work
std::set<Stream*> streams;
std::string forbidden_wait;
bool waiting_is_forbidden = false;
cudaError_t failed = cudaSuccess;  // of work that ran; the next wait reports it
thread_local int device_now = 0;

enum class Order { late, early, random };
Order order = Order::late;
std::mt19937 drawn;

double milliseconds = 0;  // of the device's clock

// Work may be Python. Who waits for another thread's work must not hold Python's lock meanwhile.
struct WithoutPython {
    void* state = nullptr;
    WithoutPython() {
        static auto holds = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
        static auto initialized = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
        static auto save = reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "PyEval_SaveThread"));
        if (holds && initialized && initialized() && holds()) state = save();
    }
    ~WithoutPython() {
        static auto restore =
            reinterpret_cast<void (*)(void*)>(dlsym(RTLD_DEFAULT, "PyEval_RestoreThread"));
        if (state) restore(state);
    }
};

void read_order(const std::string& text) {
    if (text == "late" || text == "early") {
        order = text == "late" ? Order::late : Order::early;
    } else if (text.rfind("random:", 0) == 0) {
        order = Order::random;
        drawn.seed(std::stoul(text.substr(7)));
    } else {
        fprintf(stderr, "fake GPU: no order %s; known are late, early, random:N\n", text.c_str());
        abort();
    }
}

struct ReadAtStart {
    ReadAtStart() {
        if (const char* text = getenv("FAKE_GPU_ORDER")) read_order(text);
    }
} read_at_start;

Stream* own_stream(int device) {
    static std::map<int, Stream*> own;
    std::lock_guard<std::recursive_mutex> held(lock);
    Stream*& stream = own[device];
    if (!stream) {
        stream = new Stream;
        stream->device = device;
        stream->of_device = true;
        streams.insert(stream);
    }
    return stream;
}

void run_ahead(Stream* stream) {
    if (order == Order::early && !stream->of_device) run_until({stream, stream->enqueued});
    if (order != Order::random) return;
    std::vector<Mark> some;
    {
        std::lock_guard<std::recursive_mutex> held(lock);
        for (Stream* each : streams)
            if (drawn() % 4 == 0 && each->enqueued > each->done)
                some.push_back({each, each->done + 1 + drawn() % (each->enqueued - each->done)});
    }
    for (Mark mark : some) run_until(mark);
}

cudaError_t take_failure() {
    std::lock_guard<std::recursive_mutex> held(lock);
    return failed;
}

}  // namespace

int devices() {
    static const char* text = getenv("FAKE_GPU_DEVICES");
    return text ? atoi(text) : 1;
}
int current_device() { return device_now; }
void make_current(int device) { device_now = device; }

Stream* stream_of(void* handle) {
    return reinterpret_cast<uintptr_t>(handle) < 16 ? own_stream(current_device())
                                                    : static_cast<Stream*>(handle);
}

cudaError_t enqueue(Stream* stream, Work work) {
    {
        std::lock_guard<std::recursive_mutex> held(lock);
        if (stream->capture) {
            stream->capture->graph->work.push_back(std::move(work));
            return cudaSuccess;
        }
        stream->queue.push_back(std::move(work));
        stream->enqueued++;
    }
    run_ahead(stream);
    return cudaSuccess;
}

cudaError_t run_until(Mark mark) {
    if (!mark.stream) return cudaSuccess;
    WithoutPython without;
    std::lock_guard<std::recursive_mutex> only(running);
    while (true) {
        Work work;
        {
            std::lock_guard<std::recursive_mutex> held(lock);
            if (mark.stream->done >= mark.position || mark.stream->queue.empty()) break;
            work = std::move(mark.stream->queue.front());
            mark.stream->queue.pop_front();
            milliseconds += 1000;
        }
        cudaError_t error = work();
        std::lock_guard<std::recursive_mutex> held(lock);
        mark.stream->done++;
        if (error != cudaSuccess) failed = error;
    }
    return take_failure();
}

cudaError_t wait_for_device(int device) {
    std::vector<Stream*> all;
    {
        std::lock_guard<std::recursive_mutex> held(lock);
        for (Stream* each : streams)
            if (each->device == device) all.push_back(each);
    }
    for (Stream* each : all) run_until({each, each->enqueued});
    return take_failure();
}

void forget_failures() { failed = cudaSuccess; }

cudaError_t wait_of_the_host(const char* name, Stream* stream) {
    count(std::string("wait: ") + name);
    if (stream && stream->capture) {
        stream->capture->invalid = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    if (waiting_is_forbidden) {
        forbidden_wait = name;
        return cudaErrorNotPermitted;
    }
    if (!stream) return wait_for_device(current_device());
    return run_until({stream, stream->enqueued});
}

}  // namespace fake

using namespace fake;

// ---- for tests

API void fake_gpu_order(const char* text) { read_order(text); }

// Make each wait of the host an error, or allow it again.
API void fake_gpu_forbid_waiting(int forbidden) {
    waiting_is_forbidden = forbidden != 0;
    forbidden_wait.clear();
}
API const char* fake_gpu_forbidden_wait() { return forbidden_wait.c_str(); }

// Enqueue a piece of work that is Python: `run(number, last)` is called when its turn comes. `last`
// is 0 for work in a captured graph, which runs again.
//
// An exception of the host's Python that is on its way is kept meanwhile: memory that it frees waits
// for the device.
static int (*run_python)(long, int) = nullptr;
static cudaError_t python_work(long number, int last) {
    static auto lock_python = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    static auto unlock = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
    using Error = void (*)(void**, void**, void**);
    static auto fetch = reinterpret_cast<Error>(dlsym(RTLD_DEFAULT, "PyErr_Fetch"));
    static auto restore = reinterpret_cast<void (*)(void*, void*, void*)>(dlsym(RTLD_DEFAULT, "PyErr_Restore"));
    void *type, *value, *trace;
    int state = lock_python();
    fetch(&type, &value, &trace);
    int failed = run_python(number, last);
    restore(type, value, trace);
    unlock(state);
    return failed ? cudaErrorLaunchFailure : cudaSuccess;
}
API void fake_gpu_python(int (*run)(long, int)) { run_python = run; }
API int fake_gpu_enqueue_python(void* handle, const char* name, long number) {
    Stream* stream = stream_of(handle);
    launched(name, stream);
    int last = stream->capture ? 0 : 1;
    return enqueue(stream, [=] { return python_work(number, last); });
}

// ---- CUDA's functions

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned, int priority) {
    std::lock_guard<std::recursive_mutex> held(lock);
    Stream* stream = new Stream;
    stream->device = current_device();
    stream->priority = priority;
    streams.insert(stream);
    *made = reinterpret_cast<cudaStream_t>(stream);
    return cudaSuccess;
}
API cudaError_t cudaStreamCreate(cudaStream_t* made) { return cudaStreamCreateWithPriority(made, 0, 0); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned flags) {
    return cudaStreamCreateWithPriority(made, flags, 0);
}
API cudaError_t cudaStreamDestroy(cudaStream_t s) {
    return run_until({stream_of(s), stream_of(s)->enqueued});
}
API cudaError_t cudaStreamGetPriority(cudaStream_t s, int* priority) {
    *priority = stream_of(s)->priority;
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    return wait_of_the_host("cudaStreamSynchronize", stream_of(s));
}
API cudaError_t cudaDeviceSynchronize() { return wait_of_the_host("cudaDeviceSynchronize", nullptr); }
API cudaError_t cudaStreamQuery(cudaStream_t s) {
    Stream* stream = stream_of(s);
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;
    return stream->done >= stream->enqueued ? cudaSuccess : cudaErrorNotReady;
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    count("cudaStreamWaitEvent");
    Stream* stream = stream_of(s);
    Event* event = reinterpret_cast<Event*>(e);
    if (event->capture && event->capture->graph) {
        std::lock_guard<std::recursive_mutex> held(lock);
        if (!stream->capture) {
            stream->capture = event->capture;
            event->capture->streams.push_back(stream);
        }
        return cudaSuccess;
    }
    if (stream->capture) return cudaErrorStreamCaptureIsolation;
    Mark mark = event->mark;
    return enqueue(stream, [=] { return run_until(mark); });
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void* argument) {
    return enqueue(stream_of(s), [=] { function(argument); return cudaSuccess; });
}
API cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t function, void* argument, unsigned) {
    return enqueue(stream_of(s), [=] { function(s, cudaSuccess, argument); return cudaSuccess; });
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
    *made = reinterpret_cast<cudaEvent_t>(new Event);
    return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* made) { return cudaEventCreateWithFlags(made, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete reinterpret_cast<Event*>(e);
    return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    count("cudaEventRecord");
    Event* event = reinterpret_cast<Event*>(e);
    Stream* stream = stream_of(s);
    auto reached = std::make_shared<double>(-1);
    {
        std::lock_guard<std::recursive_mutex> held(lock);
        if (stream->done >= stream->enqueued) {
            *reached = milliseconds;
        } else if (!stream->capture) {  // a record takes no time itself
            stream->queue.push_back([=] { *reached = milliseconds -= 1000; return cudaSuccess; });
            stream->enqueued++;
        }
        event->mark = {stream, stream->enqueued};
        event->milliseconds = reached;
        event->capture = stream->capture;
        event->queries = 0;
    }
    if (!event->capture) run_ahead(stream);
    return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) {
    return cudaEventRecord(e, s);
}
API cudaError_t cudaEventQuery(cudaEvent_t e) {
    Event* event = reinterpret_cast<Event*>(e);
    if (event->capture) return cudaErrorStreamCaptureUnsupported;
    if (!event->mark.stream || event->mark.stream->done >= event->mark.position) return cudaSuccess;
    // A program that asks again and again is waiting, and would wait for ever.
    if (++event->queries < 1000) return cudaErrorNotReady;
    return run_until(event->mark);
}
API cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    count("wait: cudaEventSynchronize");
    if (waiting_is_forbidden) {
        forbidden_wait = "cudaEventSynchronize";
        return cudaErrorNotPermitted;
    }
    return run_until(reinterpret_cast<Event*>(e)->mark);
}
API cudaError_t cudaEventElapsedTime(float* elapsed, cudaEvent_t from, cudaEvent_t to) {
    double began = *reinterpret_cast<Event*>(from)->milliseconds;
    double ended = *reinterpret_cast<Event*>(to)->milliseconds;
    if (began < 0 || ended < 0) return cudaErrorNotReady;
    *elapsed = static_cast<float>(ended - began);
    return cudaSuccess;
}

// ---- captured graphs

API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
API cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
    *status = stream_of(s)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* status,
                                         unsigned long long* number, cudaGraph_t* graph,
                                         const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                         size_t* count_of_nodes) {
    Stream* stream = stream_of(s);
    cudaStreamIsCapturing(s, status);
    if (number) *number = stream->capture ? stream->capture->number : 0;
    if (graph)
        *graph = stream->capture ? reinterpret_cast<cudaGraph_t>(stream->capture->graph.get()) : nullptr;
    if (nodes) *nodes = nullptr;
    if (edges) *edges = nullptr;
    if (count_of_nodes) *count_of_nodes = 0;
    return cudaSuccess;
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    static unsigned long long numbers = 0;
    std::lock_guard<std::recursive_mutex> held(lock);
    Stream* stream = stream_of(s);
    if (stream->of_device) return cudaErrorStreamCaptureUnsupported;
    stream->capture = std::make_shared<Capture>();
    stream->capture->number = ++numbers;
    stream->capture->streams.push_back(stream);
    return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
    std::lock_guard<std::recursive_mutex> held(lock);
    std::shared_ptr<Capture> capture = stream_of(s)->capture;
    if (!capture) return cudaErrorIllegalState;
    for (Stream* each : capture->streams) each->capture.reset();
    *graph = capture->invalid ? nullptr : reinterpret_cast<cudaGraph_t>(new Graph(*capture->graph));
    return capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
    auto counted = with_counted_kernels(*reinterpret_cast<Graph*>(graph));
    *made = reinterpret_cast<cudaGraphExec_t>(new std::shared_ptr<Graph>(counted));
    return cudaSuccess;
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(made, graph, flags);
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    count("cudaGraphLaunch");
    std::shared_ptr<Graph> graph = *reinterpret_cast<std::shared_ptr<Graph>*>(exec);
    graph->times++;
    return enqueue(stream_of(s), [graph] {
        cudaError_t first = cudaSuccess;
        for (const Work& work : graph->work) {
            cudaError_t error = work();
            if (first == cudaSuccess) first = error;
        }
        return first;
    });
}
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete reinterpret_cast<Graph*>(graph);
    return cudaSuccess;
}
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete reinterpret_cast<std::shared_ptr<Graph>*>(exec);
    return cudaSuccess;
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* number) {
    *number = reinterpret_cast<Graph*>(graph)->work.size();
    return cudaSuccess;
}
