#!/usr/bin/env bash
# Does: sees to it that the programs of the tests with real services are here (sshd, a Docker engine,
#       a static busybox, libfaketime); as root it installs what is missing from Debian's packages.
# Never: starts a service, touches what is already installed, or prints when nothing is missing.
# Plan: which packages are missing; without root or apt-get one line names them; install; look again.
set -euo pipefail
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

has() { local path && path="$(command -v "$1")" && [ -x "$path" ]; }
has_static_busybox() { has busybox && ! ldd "$(command -v busybox)" >/dev/null 2>&1; }
has_faketime() { compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null; }
has_docker_cli_package() { has apt-cache && apt-cache show docker-cli >/dev/null 2>&1; }

missing() { # Debian packages, one a line
    has ssh && has ssh-keygen || echo openssh-client
    has sshd || echo openssh-server
    has dockerd && has docker-proxy || echo docker.io
    # a package of its own since Debian 13
    has docker || { has_docker_cli_package && echo docker-cli || echo docker.io; }
    has_static_busybox || echo busybox-static
    has_faketime || echo libfaketime
    has ip || echo iproute2
    has sudo || echo sudo
    has unshare && has setpriv || echo util-linux
}

refuse() {
    echo "the tests need these Debian packages: $(echo $1); $2" >&2
    exit 1
}

install_quietly() { # shows what apt-get said only when it fails
    "$@" >"$log" 2>&1 || {
        cat "$log" >&2
        refuse "$packages" "apt-get could not install them"
    }
}

packages="$(missing | sort -u)"
[ -n "$packages" ] || exit 0
[ "$(id -u)" = 0 ] || refuse "$packages" "install them as root"
has apt-get || refuse "$packages" "there is no apt-get here"

log="$(mktemp)"
policy=/usr/sbin/policy-rc.d # exit 101: packages start no service
trap 'rm -f "$log" ${own_policy:-}' EXIT
[ -e "$policy" ] || {
    own_policy="$policy"
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
}

echo "installing $(echo $packages)"
export DEBIAN_FRONTEND=noninteractive
install_quietly apt-get update -q
has docker || packages="$(missing | sort -u)" # docker-cli is known only after the update
install_quietly apt-get install -y -q --no-install-recommends $packages

packages="$(missing | sort -u)"
[ -z "$packages" ] || refuse "$packages" "they are installed, but their programs are not found"
