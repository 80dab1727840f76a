# The image of overlayd: one static program, run by an ordinary user.
FROM golang:1.26-bookworm AS build
WORKDIR /src
ENV CGO_ENABLED=0
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN go build -trimpath -buildvcs=false -ldflags='-s -w' -o /out/overlayd ./cmd/overlayd

# Alpine for its wget and its certificates; nothing is installed.
FROM alpine:3.22
RUN adduser -D -H -u 10001 overlayd \
 && install -d -o overlayd -g overlayd -m 0700 /var/lib/overlayd
COPY --from=build /out/overlayd /usr/local/bin/overlayd
COPY LICENSE NOTICE licenses /usr/share/doc/overlayd/
USER overlayd
WORKDIR /var/lib/overlayd
# Keys and tokens that must outlive the container.
VOLUME /var/lib/overlayd
# The public listener, and the operator's, which must never be published to a network.
EXPOSE 8080 8081
# Ready when the database answers and is migrated; the operator listener is on 8081 unless the configuration says otherwise.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8081/readyz"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/overlayd"]
CMD ["serve", "--config", "/etc/overlayd/overlayd.yaml"]
