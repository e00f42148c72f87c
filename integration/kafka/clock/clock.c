// A wall clock that a test can set while a process runs: preloaded into it, this adds the seconds in the file FENCEPOST_CLOCK to what the machine's wall clock says. Time that passes (CLOCK_MONOTONIC) stays the machine's.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
	const char *path = getenv("FENCEPOST_CLOCK");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		abort(); // The machine's time in place of the test's would prove nothing.
	void *page = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (page == MAP_FAILED)
		abort();
	real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	ahead = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
	// Others are loaded before this has begun, and may ask.
	int failed = real_clock_gettime ? real_clock_gettime(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
	if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += *ahead;
	return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
	struct timespec t;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &t))
		return -1;
	now->tv_sec = t.tv_sec, now->tv_usec = t.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *now) {
	struct timespec t;
	if (clock_gettime(CLOCK_REALTIME, &t))
		return -1;
	if (now)
		*now = t.tv_sec;
	return t.tv_sec;
}
