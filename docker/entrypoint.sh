#!/bin/sh
# A container listens at all of its addresses, and others reach it by its name: the one that its network gave it unless another is set.
export FOREBAY_ADVERTISE="${FOREBAY_ADVERTISE:-$(cat /etc/hostname)}"
exec forebay "$@"
