"""Sockets: services of the host, its network, and families with kernel code behind them."""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import struct

from tests.runtimes.escapes.inside import (
    NAMESPACE,
    ROOT,
    USER,
    Refused,
    Targets,
    escape,
    first_success,
)

SERVICES = (
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/dbus/system_bus_socket",
    "/var/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/systemd/notify",
    "/run/systemd/journal/socket",
    "/run/udev/control",
    "/run/snapd.socket",
    "/run/libvirt/libvirt-sock",
    "/dev/log",
    "/tmp/.X11-unix/X0",
)
ABSTRACT_SERVICES = ("/tmp/.X11-unix/X0", "/containerd-shim/x.sock", "/org/kernel/udev/monitor")
RTM_NEWLINK, REQUEST_AND_ACK, NLMSG_ERROR, IFF_UP = 16, 5, 2, 1
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914


def connect(family: int, kind: int, address: str | bytes | tuple[str, int]) -> str:
    with socket.socket(family, kind) as client:
        client.settimeout(2)
        client.connect(address)
        return f"connected to {address!r}"


@escape("sockets.tcp_of_the_host", USER)
def tcp_of_the_host(targets: Targets) -> str:
    return connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", targets.tcp_port))


@escape("sockets.tcp_by_other_names", USER)
def tcp_by_other_names(targets: Targets) -> str:
    """All of 127/8, and "this host", are the same machine."""
    names = ("127.0.0.2", "127.255.255.254", "0.0.0.0")
    tries = [(name, targets.tcp_port) for name in names]
    return first_success(lambda to: connect(socket.AF_INET, socket.SOCK_STREAM, to), tries)


@escape("sockets.udp_of_the_host", USER)
def udp_of_the_host(targets: Targets) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", targets.udp_port))
        client.send(b"hello")
        # A port that nobody has is reported on the socket before send returns.
        if select.select([client], [], [], 0)[0]:
            client.recv(1, socket.MSG_DONTWAIT)
        return "sent"


@escape("sockets.network")
def network(_targets: Targets) -> str:
    """Connecting UDP looks for a route and sends nothing; the address is nobody's."""
    tries = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
    return first_success(lambda to: connect(to[0], socket.SOCK_DGRAM, (to[1], 9)), tries)


@escape("sockets.abstract", USER)
def abstract(targets: Targets) -> str:
    return connect(socket.AF_UNIX, socket.SOCK_STREAM, b"\0" + targets.abstract.encode())


@escape("sockets.abstract_datagram", USER)
def abstract_datagram(targets: Targets) -> str:
    address = b"\0" + targets.abstract.encode() + b"-datagram"
    return connect(socket.AF_UNIX, socket.SOCK_DGRAM, address)


@escape("sockets.by_path", USER)
def by_path(targets: Targets) -> str:
    return connect(socket.AF_UNIX, socket.SOCK_STREAM, targets.unix_socket)


@escape("sockets.services_of_the_host")
def services_of_the_host(_targets: Targets) -> str:
    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
    tries = [(kind, path) for kind in kinds for path in SERVICES]
    tries += [(kind, "\0" + name) for kind in kinds for name in ABSTRACT_SERVICES]
    return first_success(lambda one: connect(socket.AF_UNIX, *one), tries)


@escape("sockets.raw", ROOT)
def raw(_targets: Targets) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP):
        return "opened"


@escape("sockets.packet", ROOT)
def packet(_targets: Targets) -> str:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)):
        return "opened"


@escape("sockets.network_settings", NAMESPACE)
def network_settings(_targets: Targets) -> str:
    """Asks the kernel to switch loopback on."""
    body = struct.pack("=BxHiII", 0, 0, 1, IFF_UP, IFF_UP)
    head = struct.pack("=IHHII", 16 + len(body), RTM_NEWLINK, REQUEST_AND_ACK, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.settimeout(2)
        link.sendto(head + body, (0, 0))
        kind, code = struct.unpack_from("=4xH10xi", link.recv(4096))
    if kind == NLMSG_ERROR and code:
        raise OSError(-code, os.strerror(-code))
    return "set an interface"


@escape("sockets.network_settings_by_ioctl", NAMESPACE)
def network_settings_by_ioctl(_targets: Targets) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = array.array("b", struct.pack("16sh22x", b"lo", 0))
        fcntl.ioctl(handle, SIOCGIFFLAGS, request)
        fcntl.ioctl(handle, SIOCSIFFLAGS, request)
    return "set an interface"


@escape("sockets.interfaces_of_the_host")
def interfaces_of_the_host(_targets: Targets) -> str:
    others = [name for _index, name in socket.if_nameindex() if name != "lo"]
    if others:
        return f"sees {others}"
    raise Refused("only loopback")


def open_family(family: int, kind: int, protocol: int = 0) -> str:
    with socket.socket(family, kind, protocol):
        return "opened"


@escape("sockets.virtual_machine", USER)
def virtual_machine(_targets: Targets) -> str:
    """AF_VSOCK reaches the hypervisor, past every network namespace."""
    return open_family(40, socket.SOCK_STREAM)


@escape("sockets.kernel_crypto")
def kernel_crypto(_targets: Targets) -> str:
    return open_family(38, socket.SOCK_SEQPACKET)


@escape("sockets.rare_families")
def rare_families(_targets: Targets) -> str:
    """Where opening a socket loads a module of the kernel."""
    kinds = (socket.SOCK_RAW, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
    known = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    families = [number for number in range(3, 46) if number not in known]
    tries = [(family, kind) for family in families for kind in kinds]
    return first_success(lambda one: open_family(*one), tries)


@escape("sockets.rare_protocols")
def rare_protocols(_targets: Targets) -> str:
    """SCTP, DCCP, UDP-Lite."""
    tries = ((1, 132), (5, 132), (6, 33), (2, 136))
    return first_success(lambda one: open_family(socket.AF_INET, *one), tries)


@escape("sockets.kernel_messages", USER)
def kernel_messages(_targets: Targets) -> str:
    """Netlink of the packet filter and of auditing."""
    return first_success(lambda one: open_family(16, socket.SOCK_RAW, one), (9, 12, 16, 6, 3))
