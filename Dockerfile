# The image of berth. "make image" makes a folder with the binary and empty folders, which is
# the context here. So the image needs no other one, and no network.
FROM scratch

# The user needs no name. A new volume that is mounted at one of its folders gets the same owner.
COPY --chown=65532:65532 var /var/lib/berth
COPY --chown=65532:65532 run /run/berth
COPY --chown=65532:65532 run /certs
COPY berth /usr/bin/berth
USER 65532:65532
ENV PATH=/usr/bin

# Where servers and sidecars serve, and where jobs and the health check find them.
ENV BERTH_SOCKET=/run/berth/berth.sock BERTH_SIDECAR=unix:///run/berth/berth.sock
# What lets a restarted process keep its claims. A server has it below its data.
ENV BERTH_STATE_DIR=/var/lib/berth/state
VOLUME /var/lib/berth

# A process that is no server and no sidecar needs --listen, and its address in BERTH_SIDECAR.
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s CMD ["/usr/bin/berth", "ready"]
ENTRYPOINT ["/usr/bin/berth"]
