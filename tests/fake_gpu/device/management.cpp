// NVML, which tells what devices there are, and how they are, without a context on them. running.py
// gives this library the name libnvidia-ml.so.1 as well. The clock of their processors in MHz is
// FAKE_GPU_CLOCK; FAKE_GPU_OTHER is the id of a process that uses them beside the one that asks.
//
// Here is also the log of who uses CUDA itself: where FAKE_GPU_USERS names a file, each process
// writes a line into it for the first call of each kind.
#include "device.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

namespace fake {

void note_use(const char* what) {
    static const char* file = getenv("FAKE_GPU_USERS");
    static std::set<std::string> written;
    static pid_t process = 0;
    std::lock_guard<std::recursive_mutex> held(lock);
    if (!file) return;
    if (process != getpid()) written.clear();
    process = getpid();
    if (!written.insert(what).second) return;
    std::stringstream command;
    command << std::ifstream("/proc/self/cmdline").rdbuf();
    std::string line = std::to_string(process) + "\t" + what + "\t" + command.str();
    for (char& letter : line)
        if (letter == '\0' || letter == '\n') letter = ' ';
    line += "\n";
    int descriptor = open(file, O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (write(descriptor, line.data(), line.size()) < 0) perror(file);
    close(descriptor);
}

}  // namespace fake

using namespace fake;

namespace {

constexpr int DONE = 0, NO_SUCH_ARGUMENT = 2, TOO_SMALL = 7;  // nvmlReturn_t
constexpr int PROCESSORS = 1;                                 // nvmlClockType_t
constexpr unsigned long long POWER_CAP = 4;                   // of nvmlClocksThrottleReasons

struct Process {  // nvmlProcessInfo_t
    unsigned id;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

unsigned number_of(const char* variable, unsigned otherwise) {
    const char* text = getenv(variable);
    return text ? atoi(text) : otherwise;
}

}  // namespace

API int nvmlInit() { return DONE; }
API int nvmlInit_v2() { return nvmlInit(); }
API int nvmlShutdown() { return DONE; }
API int nvmlDeviceGetCount_v2(unsigned* number) {
    *number = devices();
    return DONE;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned number, uintptr_t* device) {
    *device = number + 1;
    return number < static_cast<unsigned>(devices()) ? DONE : NO_SUCH_ARGUMENT;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char* text, uintptr_t* device) {
    unsigned bus = 1;  // as cudaDeviceGetPCIBusId numbers them
    sscanf(text, "%*x:%*x:%x", &bus);
    return nvmlDeviceGetHandleByIndex_v2(bus ? bus - 1 : 0, device);
}
API int nvmlDeviceGetComputeRunningProcesses(uintptr_t, unsigned* number, void*) {
    *number = 0;
    return DONE;
}
API int nvmlDeviceGetComputeRunningProcesses_v3(uintptr_t, unsigned* number, Process* processes) {
    unsigned other = number_of("FAKE_GPU_OTHER", 0), room = *number;
    *number = other ? 2 : 1;
    if (room < *number) return TOO_SMALL;
    processes[0] = {static_cast<unsigned>(getpid()), 1 << 30, ~0u, ~0u};
    if (other) processes[1] = {other, 1 << 30, ~0u, ~0u};
    return DONE;
}
API int nvmlDeviceGetClockInfo(uintptr_t, int of, unsigned* megahertz) {
    *megahertz = of == PROCESSORS ? number_of("FAKE_GPU_CLOCK", 1755) : 2619;
    return DONE;
}
API int nvmlDeviceGetPowerUsage(uintptr_t, unsigned* milliwatts) {
    *milliwatts = 640000;
    return DONE;
}
API int nvmlDeviceGetCurrentClocksThrottleReasons(uintptr_t, unsigned long long* reasons) {
    *reasons = POWER_CAP;
    return DONE;
}
API int nvmlDeviceGetUUID(uintptr_t device, char* text, unsigned bytes) {
    snprintf(text, bytes, "GPU-%08d-0000-0000-0000-000000000000", static_cast<int>(device));
    return DONE;
}
API int nvmlDeviceGetName(uintptr_t, char* text, unsigned bytes) {
    snprintf(text, bytes, "%s", NAME);
    return DONE;
}
API int nvmlDeviceGetCudaComputeCapability(uintptr_t device, int* major, int* minor) {
    *major = architecture(static_cast<int>(device) - 1) / 10;
    *minor = architecture(static_cast<int>(device) - 1) % 10;
    return DONE;
}
