/*
 * NCCL's stand-in between processes: sockets between every two of them. What a rank gives is copied from its device when its stream comes
 * to the call, and sent by a thread; what it takes is waited for in the stream until it is there (runtime.h, Meeting), without end, unless
 * the communicator is aborted. A process that is gone is an asynchronous error, as the real one has it.
 */
#include "nccl_inside.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace emu {

/* Before the bytes of each message. */
struct Header {
    uint32_t what, type;
    uint64_t n;
};

struct Message {
    Header header;
    std::vector<char> bytes;
};

/* A call that waits for a message of one or of all others. */
struct Want {
    std::weak_ptr<Meeting> meeting; /* which holds this */
    size_t missing = 0;
    std::map<int, Message> got;
};

struct Peer {
    int fd = -1;
    std::vector<char> in;           /* of a message that is not whole */
    std::deque<std::vector<char>> out; /* under Net.mutex */
    size_t sent = 0;                /* of the first of these */
    std::deque<Message> messages;   /* these two: under the runtime's lock */
    std::deque<std::shared_ptr<Want>> wants;
};

struct Net {
    int size = 0, rank = 0;
    std::vector<Peer> peers; /* [size] */
    std::mutex mutex;
    int wake[2] = {-1, -1};
    bool ends = false, now = false; /* under mutex */
    std::thread thread;

    ~Net() {
        for (Peer &p : peers) {
            close(p.fd);
        }
        close(wake[0]);
        close(wake[1]);
    }
};

/* ---- how they meet ---- */

static bool send_all(int fd, const void *p, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t k = send(fd, static_cast<const char *>(p) + at, n - at, MSG_NOSIGNAL);
        if (k <= 0) {
            return false;
        }
        at += size_t(k);
    }
    return true;
}

static bool recv_all(int fd, void *p, size_t n) {
    return recv(fd, p, n, MSG_WAITALL) == ssize_t(n);
}

static bool resolve(const std::string &place, sockaddr_in *out) {
    size_t colon = place.rfind(':');
    addrinfo hints = {}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    if (colon == std::string::npos || getaddrinfo(place.substr(0, colon).c_str(), place.substr(colon + 1).c_str(), &hints, &found) != 0) {
        return false;
    }
    memcpy(out, found->ai_addr, sizeof *out);
    freeaddrinfo(found);
    return true;
}

static bool is_own_address(const sockaddr_in &at) {
    ifaddrs *all = nullptr;
    bool found = false;
    if (getifaddrs(&all) != 0) {
        return false;
    }
    for (const ifaddrs *i = all; i; i = i->ifa_next) {
        found = found || (i->ifa_addr && i->ifa_addr->sa_family == AF_INET &&
                          reinterpret_cast<const sockaddr_in *>(i->ifa_addr)->sin_addr.s_addr == at.sin_addr.s_addr);
    }
    freeifaddrs(all);
    return found;
}

ncclResult_t net_choose_interface(const char *place) {
    static std::once_flag once;
    static ncclResult_t chosen = ncclSuccess;
    std::call_once(once, [place] {
        sockaddr_in at;
        if (place) {
            chosen = !resolve(place, &at) ? ncclInvalidArgument : !is_own_address(at) ? ncclSystemError : ncclSuccess;
        }
    });
    return chosen;
}

bool net_is_place(const std::string &place) {
    sockaddr_in at;
    return resolve(place, &at);
}

static int listen_at(const sockaddr_in &at) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, reinterpret_cast<const sockaddr *>(&at), sizeof at) < 0 || listen(fd, 64) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Until somebody listens there. */
static int connect_to(const sockaddr_in &at) {
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, reinterpret_cast<const sockaddr *>(&at), sizeof at) == 0) {
            return fd;
        }
        close(fd);
        usleep(20000);
    }
}

/* Rank 0 hears from each where it listens, and tells all. addresses[size]. */
static std::string meet_at_root(Net &net, int root, std::vector<sockaddr_in> &addresses) {
    for (int i = 1; i < net.size; i++) {
        int fd = accept4(root, nullptr, nullptr, SOCK_CLOEXEC), rank = 0, size = 0;
        sockaddr_in at;
        if (fd < 0 || !recv_all(fd, &rank, sizeof rank) || !recv_all(fd, &size, sizeof size) || !recv_all(fd, &at, sizeof at)) {
            return "a rank does not say who it is";
        }
        if (rank < 1 || rank >= net.size || size != net.size || net.peers[size_t(rank)].fd >= 0) {
            return "rank " + std::to_string(rank) + " of " + std::to_string(size) + " comes, which is not expected";
        }
        net.peers[size_t(rank)].fd = fd;
        addresses[size_t(rank)] = at;
    }
    for (int i = 1; i < net.size; i++) {
        if (!send_all(net.peers[size_t(i)].fd, addresses.data(), addresses.size() * sizeof addresses[0])) {
            return "a rank is gone";
        }
    }
    return "";
}

static std::string meet_others(Net &net, const sockaddr_in &root, std::vector<sockaddr_in> &addresses) {
    sockaddr_in at = {};
    socklen_t length = sizeof at;
    int first = net.peers[0].fd = connect_to(root);
    getsockname(first, reinterpret_cast<sockaddr *>(&at), &length); /* of the interface that leads there */
    at.sin_port = 0;
    int listening = listen_at(at);
    getsockname(listening, reinterpret_cast<sockaddr *>(&at), &length);
    bool well = send_all(first, &net.rank, sizeof net.rank) && send_all(first, &net.size, sizeof net.size) && send_all(first, &at, sizeof at) &&
                recv_all(first, addresses.data(), addresses.size() * sizeof addresses[0]);
    for (int i = 1; well && i < net.rank; i++) {
        net.peers[size_t(i)].fd = connect_to(addresses[size_t(i)]);
        well = send_all(net.peers[size_t(i)].fd, &net.rank, sizeof net.rank);
    }
    for (int i = net.rank + 1; well && i < net.size; i++) {
        int fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC), rank = 0;
        well = fd >= 0 && recv_all(fd, &rank, sizeof rank) && rank > net.rank && rank < net.size;
        net.peers[size_t(well ? rank : net.rank)].fd = fd;
    }
    close(listening);
    return well ? "" : "the others are gone, or do not expect this one";
}

std::string net_join(const std::string &place, int size, int rank, std::shared_ptr<Net> *out) {
    auto net = std::make_shared<Net>();
    sockaddr_in root;
    net->size = size;
    net->rank = rank;
    net->peers = std::vector<Peer>(size_t(size));
    std::vector<sockaddr_in> addresses(static_cast<size_t>(size));
    if (!resolve(place, &root)) {
        return "no such place";
    }
    std::string why;
    if (rank == 0) {
        int fd = listen_at(root);
        if (fd < 0) {
            return strerror(errno);
        }
        why = meet_at_root(*net, fd, addresses);
        close(fd);
    } else {
        why = meet_others(*net, root, addresses);
    }
    if (why.empty() && pipe2(net->wake, O_CLOEXEC | O_NONBLOCK) < 0) {
        why = strerror(errno);
    }
    *out = net;
    return why;
}

/* ---- the thread ---- */

/* Under the runtime's lock: the oldest message of the peer is for the oldest call that wants one. */
static void match(Runtime &r, Peer &p, int peer) {
    while (!p.messages.empty() && !p.wants.empty()) {
        Want &w = *p.wants.front();
        w.got[peer] = std::move(p.messages.front());
        p.messages.pop_front();
        p.wants.pop_front();
        if (--w.missing == 0) {
            if (MeetingPtr meeting = w.meeting.lock()) {
                meeting->expected = 1;
                r.changed.notify_all();
            }
        }
    }
}

/* False: the peer is gone. */
static bool receive(Runtime &r, Peer &p, int peer) {
    char buffer[65536];
    ssize_t n = recv(p.fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n <= 0) {
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    }
    p.in.insert(p.in.end(), buffer, buffer + n);
    for (;;) {
        Message m;
        if (p.in.size() < sizeof m.header) {
            return true;
        }
        memcpy(&m.header, p.in.data(), sizeof m.header);
        size_t bytes = m.header.n * type_bytes(ncclDataType_t(m.header.type)), whole = sizeof m.header + bytes;
        if (p.in.size() < whole) {
            return true;
        }
        m.bytes.assign(p.in.begin() + sizeof m.header, p.in.begin() + ssize_t(whole));
        p.in.erase(p.in.begin(), p.in.begin() + ssize_t(whole));
        Lock lock(r.mutex);
        p.messages.push_back(std::move(m));
        match(r, p, peer);
    }
}

/* Under Net.mutex. */
static void transmit(Peer &p) {
    while (!p.out.empty()) {
        std::vector<char> &first = p.out.front();
        ssize_t n = send(p.fd, first.data() + p.sent, first.size() - p.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n <= 0) {
            return; /* later; that it is gone, receiving tells */
        }
        p.sent += size_t(n);
        if (p.sent == first.size()) {
            p.out.pop_front();
            p.sent = 0;
        }
    }
}

static void run(const std::shared_ptr<Net> net, const std::weak_ptr<Member> member) {
    Runtime &r = runtime();
    for (;;) {
        std::vector<pollfd> fds = {{net->wake[0], POLLIN, 0}};
        std::vector<int> of = {-1};
        {
            std::lock_guard<std::mutex> lock(net->mutex);
            bool waits = false;
            for (int i = 0; i < net->size; i++) {
                Peer &p = net->peers[size_t(i)];
                if (p.fd >= 0) {
                    transmit(p);
                    waits = waits || !p.out.empty();
                    fds.push_back({p.fd, short(POLLIN | (p.out.empty() ? 0 : POLLOUT)), 0});
                    of.push_back(i);
                }
            }
            if (net->ends && (net->now || !waits)) {
                return;
            }
        }
        poll(fds.data(), nfds_t(fds.size()), -1);
        char woken[64];
        while (read(net->wake[0], woken, sizeof woken) > 0) {
        }
        for (size_t i = 1; i < fds.size(); i++) {
            Peer &p = net->peers[size_t(of[i])];
            if ((fds[i].revents & ~POLLOUT) && !receive(r, p, of[i])) {
                Lock lock(r.mutex);
                std::lock_guard<std::mutex> own(net->mutex);
                close(p.fd);
                p.fd = -1;
                if (MemberPtr m = member.lock()) {
                    m->async = ncclRemoteError;
                }
            }
        }
    }
}

void net_begin(const MemberPtr &m) {
    m->net->thread = std::thread(run, m->net, std::weak_ptr<Member>(m));
}

static void wake(Net &net) {
    ssize_t ignored = write(net.wake[1], "", 1);
    (void)ignored;
}

void net_end(const std::shared_ptr<Net> &net, bool now) {
    if (!net || !net->thread.joinable()) {
        return;
    }
    {
        std::lock_guard<std::mutex> lock(net->mutex);
        net->ends = true;
        net->now = now;
    }
    wake(*net);
    net->thread.join();
}

/* ---- calls ---- */

static void post(Net &net, int to, const Part &p) {
    size_t bytes = p.n * type_bytes(p.type);
    Header header = {uint32_t(p.what), uint32_t(p.type), p.n};
    std::vector<char> message(sizeof header + bytes);
    memcpy(message.data(), &header, sizeof header);
    memcpy(message.data() + sizeof header, p.from, bytes);
    std::lock_guard<std::mutex> lock(net.mutex);
    net.peers[size_t(to)].out.push_back(std::move(message));
}

/* Its device's memory as it is when the stream comes to the call. */
static cudaError_t give(const std::shared_ptr<Net> &net, const Part &p) {
    for (int i = 0; i < net->size; i++) {
        if (i != net->rank && (p.what != What::send || i == p.other)) {
            post(*net, i, p);
        }
    }
    wake(*net);
    return cudaSuccess;
}

/* What is sent to a receive is a send; the others are called alike. */
static bool belongs(const Part &p, const Header &h) {
    What want = p.what == What::recv ? What::send : p.what;
    return h.what == uint32_t(want) && h.type == uint32_t(p.type) && h.n == p.n;
}

static cudaError_t take(const Want &want, const std::shared_ptr<Net> &net, const Part &p) {
    size_t bytes = p.n * type_bytes(p.type);
    for (const auto &got : want.got) {
        const Header &h = got.second.header;
        if (!belongs(p, h)) {
            Runtime &r = runtime();
            Lock lock(r.mutex);
            return note(r, cudaErrorLaunchFailure, "the processes do not do the same: rank %d calls %s of %zu (type %d), rank %d %s of %zu (type %d)",
                        net->rank, names[int(p.what)], p.n, int(p.type), got.first, h.what < 5 ? names[h.what] : "?", size_t(h.n), int(h.type));
        }
        char *to = static_cast<char *>(p.to) + (p.what == What::all_gather ? size_t(got.first) * bytes : 0);
        memcpy(to, got.second.bytes.data(), bytes);
    }
    if (p.what == What::all_gather) {
        char *own = static_cast<char *>(p.to) + size_t(net->rank) * bytes;
        if (own != p.from) {
            memcpy(own, p.from, bytes);
        }
    }
    return cudaSuccess;
}

/* It is done when all that it takes has come. */
static Meet meet_messages(const MemberPtr &m, const Part &p) {
    return [m, p](const OpPtr &op) {
        std::shared_ptr<Net> net = m->net;
        Runtime &r = runtime();
        auto want = std::make_shared<Want>();
        auto meeting = std::make_shared<Meeting>();
        want->meeting = meeting;
        meeting->expected = SIZE_MAX;
        meeting->ops.push_back(op);
        meeting->work = [want, net, p] { return take(*want, net, p); };
        op->meetings.push_back(meeting);
        m->ops.push_back(op);
        for (int i = 0; i < net->size; i++) {
            if (i != net->rank && (p.what == What::all_gather || i == p.other)) {
                want->missing++;
                net->peers[size_t(i)].wants.push_back(want);
            }
        }
        for (int i = 0; i < net->size; i++) {
            match(r, net->peers[size_t(i)], i);
        }
    };
}

cudaError_t net_launch(Call &c, const MemberPtr &m, const Part &p, Stream &s) {
    std::shared_ptr<Net> net = m->net;
    if (s.capture) {
        return note(c.r, cudaErrorStreamCaptureUnsupported, "%s between processes is captured (the emulator)", names[int(p.what)]);
    }
    if (p.what == What::all_reduce) {
        return note(c.r, cudaErrorNotSupported, "sums between processes (the emulator)");
    }
    if (bytes_given(*m, p) > 0) {
        cudaError_t error = enqueue(c.r, c.lock, s, Kind::copy, names[int(p.what)], 0, [net, p](int) { return give(net, p); });
        if (error != cudaSuccess) {
            return error;
        }
    }
    bool takes = p.what == What::recv || p.what == What::all_gather || (p.what == What::broadcast && p.other != m->rank);
    return takes ? enqueue_meeting(c.r, c.lock, s, names[int(p.what)], meet_messages(m, p)) : cudaSuccess;
}

} // namespace emu
