# Programs on a software RDMA device, for CI and development. As an unprivileged user, without /dev/net/tun:
#
#     docker build -t flue .
#     docker run --rm flue                                   # ibv_devinfo
#     docker run --rm flue flue run -- your-program
#
# In an image of your own, copy the two lines with COPY --from. Nodes on a TAP need: --device /dev/net/tun --cap-add NET_ADMIN
FROM rust:1-bookworm AS build
COPY . /flue
# The executable contains its libraries.
RUN cd /flue && cargo install --locked --path . --root /opt/flue

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ibverbs-utils perftest rdmacm-utils \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/flue/bin/flue /usr/local/bin/flue
USER nobody
CMD ["flue", "run", "--", "ibv_devinfo"]
