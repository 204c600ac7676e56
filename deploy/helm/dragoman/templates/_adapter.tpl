{{/*
The parts of an adapter that a pod of its own and a sidecar have in common. All take (dict "root" $ "adapter" one
"socket" path "healthPort" number).
*/}}

{{- define "dragoman.adapterContainer" -}}
{{- $isSidecar := eq .adapter.mode "sidecar" -}}
image: {{ include "dragoman.image" (dict "image" .adapter.image "appVersion" .root.Chart.AppVersion) }}
imagePullPolicy: {{ .adapter.image.pullPolicy }}
{{- with .adapter.command }}
command: {{ toJson . }}
{{- end }}
args:
{{- if .adapter.args }}
  {{- toYaml .adapter.args | nindent 2 }}
{{- else }}
  - dragoman
  - adapter
  - serve
  - {{ .adapter.type }}
  - --log-format=json
  - --listen=unix:{{ .socket }}
  {{- if not $isSidecar }}
  - --listen={{ .root.Values.router.listenHost }}:7801
  {{- end }}
{{- end }}
env:
  - {name: HOME, value: /home/agent}
  - {name: GRPC_ENABLE_FORK_SUPPORT, value: "0"}
  {{- if .adapter.args }}
  - {name: DRAGOMAN_LISTEN, value: {{ $isSidecar | ternary (printf "unix:%s" .socket) (printf "%s:7801" .root.Values.router.listenHost) | quote }}}
  {{- end }}
  - {name: DRAGOMAN_HEALTH, value: "{{ .root.Values.router.listenHost }}:{{ .healthPort }}"}
  {{- if not $isSidecar }}
  {{- if .root.Values.metrics.enabled }}
  - {name: DRAGOMAN_METRICS, value: "{{ .root.Values.router.listenHost }}:{{ .root.Values.metrics.port }}"}
  {{- end }}
  - {name: DRAGOMAN_DRAIN_GRACE, value: {{ .adapter.drainGraceSeconds | toString | quote }}}
  {{- include "dragoman.tcpEnv" .root | nindent 2 }}
  {{- end }}
  {{- with .root.Values.tracing.endpoint }}
  - {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
  {{- end }}
  {{- with .adapter.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .adapter.envFrom }}
envFrom: {{ toJson . }}
{{- end }}
resources: {{ toJson .adapter.resources }}
securityContext:
  {{- include "dragoman.containerSecurity" .root | nindent 2 }}
startupProbe:
  {{- if .adapter.probes.startup }}
  {{- toYaml .adapter.probes.startup | nindent 2 }}
  {{- else }}
  {{- include "dragoman.healthProbe" (dict "port" .healthPort) | nindent 2 }}
  periodSeconds: 2
  failureThreshold: 30
  {{- end }}
livenessProbe:
  {{- if .adapter.probes.liveness }}
  {{- toYaml .adapter.probes.liveness | nindent 2 }}
  {{- else }}
  {{- include "dragoman.healthProbe" (dict "port" .healthPort "service" "liveness") | nindent 2 }}
  periodSeconds: 30
  failureThreshold: 4
  {{- end }}
{{- end }}

{{- define "dragoman.adapterMounts" -}}
{{- $name := eq .adapter.mode "sidecar" | ternary (printf "home-%s" .adapter.name) "home" }}
{{- $tmp := eq .adapter.mode "sidecar" | ternary (printf "tmp-%s" .adapter.name) "tmp" }}
{{- $persists := not (empty (or .adapter.home.existingClaim .adapter.home.size)) }}
- {name: {{ $persists | ternary $name "private" }}, mountPath: /home/agent, subPath: {{ $persists | ternary "home" $name }}}
- {name: private, mountPath: /tmp, subPath: {{ $tmp }}}
{{- if .adapter.workspace.existingClaim }}
- name: workspace-{{ .adapter.name }}
  mountPath: {{ .adapter.workspace.mountPath }}
  {{- with .adapter.workspace.subPath }}
  subPath: {{ . }}
  {{- end }}
{{- else }}
- {name: private, mountPath: {{ .adapter.workspace.mountPath }}, subPath: workspace-{{ .adapter.name }}}
{{- end }}
{{- end }}

{{/* The volumes that only this adapter has. */}}
{{- define "dragoman.adapterVolumes" -}}
{{- $name := eq .adapter.mode "sidecar" | ternary (printf "home-%s" .adapter.name) "home" }}
{{- if or .adapter.home.existingClaim .adapter.home.size }}
- name: {{ $name }}
  persistentVolumeClaim: {claimName: {{ default (printf "%s-%s-home" (include "dragoman.fullname" .root) .adapter.name) .adapter.home.existingClaim }}}
{{- end }}
{{- with .adapter.workspace.existingClaim }}
- name: workspace-{{ $.adapter.name }}
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- end }}

{{/* Metadata and specification of a pod of its own. */}}
{{- define "dragoman.adapterPod" -}}
metadata:
  labels:
    {{- include "dragoman.labels" $.root | nindent 4 }}
    app.kubernetes.io/component: adapter
    dragoman.dev/adapter: {{ $.adapter.name }}
    {{- with $.adapter.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $.adapter.podAnnotations }}
  annotations: {{ toJson . }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $.adapter.terminationGracePeriodSeconds }}
  {{- with $.root.Values.imagePullSecrets }}
  imagePullSecrets: {{ toJson . }}
  {{- end }}
  securityContext:
    {{- include "dragoman.podSecurity" $.root | nindent 4 }}
  {{- with include "dragoman.scheduling" $.adapter | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- $paths := list "/private/run" "/private/tmp" "/private/home" (printf "/private/workspace-%s" $.adapter.name) }}
  {{- $mounts := list (dict "name" "private" "mountPath" "/private") }}
  {{- if or $.adapter.home.existingClaim $.adapter.home.size }}
  {{- $paths = append $paths "/home-volume/home" }}
  {{- $mounts = append $mounts (dict "name" "home" "mountPath" "/home-volume") }}
  {{- end }}
  initContainers:
    - {{- include "dragoman.directories" (dict "root" $.root "image" (include "dragoman.image" (dict "image" $.root.Values.image "appVersion" $.root.Chart.AppVersion)) "pullPolicy" $.root.Values.image.pullPolicy "paths" $paths "mounts" $mounts) | nindent 6 }}
  containers:
    - name: adapter
      {{- include "dragoman.adapterContainer" $ | nindent 6 }}
      readinessProbe:
        {{- if $.adapter.probes.readiness }}
        {{- toYaml $.adapter.probes.readiness | nindent 8 }}
        {{- else }}
        {{- include "dragoman.healthProbe" (dict "port" 7900) | nindent 8 }}
        periodSeconds: 10
        {{- end }}
      lifecycle:
        preStop: {sleep: {seconds: {{ $.adapter.preStopSleepSeconds }}}}
      ports:
        - {name: grpc, containerPort: 7801}
        - {name: health, containerPort: 7900}
        {{- if $.root.Values.metrics.enabled }}
        - {name: metrics, containerPort: {{ $.root.Values.metrics.port }}}
        {{- end }}
      volumeMounts:
        - {name: private, mountPath: /run/dragoman, subPath: run}
        - {name: tls, mountPath: /etc/dragoman/tls, readOnly: true}
        {{- include "dragoman.adapterMounts" $ | trim | nindent 8 }}
  volumes:
    - {name: private, emptyDir: {}}
    - {name: tls, secret: {secretName: {{ include "dragoman.adapterTlsSecret" $ }}, defaultMode: 0440}}
    {{- with include "dragoman.adapterVolumes" $ | trim }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end }}
