{{- define "dragoman.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "dragoman.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "dragoman.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "dragoman.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Labels by which objects of this release are selected. */}}
{{- define "dragoman.selector" -}}
app.kubernetes.io/name: {{ include "dragoman.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dragoman.labels" -}}
{{ include "dragoman.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: dragoman
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "dragoman.routerSelector" -}}
{{ include "dragoman.selector" . }}
app.kubernetes.io/component: router
{{- end }}

{{/* Takes (dict "root" $ "adapter" one). */}}
{{- define "dragoman.adapterSelector" -}}
{{ include "dragoman.selector" .root }}
app.kubernetes.io/component: adapter
dragoman.dev/adapter: {{ .adapter.name }}
{{- end }}

{{/* The adapters with their defaults, as JSON: {"adapters": [...]}. */}}
{{- define "dragoman.adapters" -}}
{{- $adapters := list }}
{{- range .Values.adapters }}
{{- $one := mergeOverwrite (deepCopy $.Values.adapterDefaults) . }}
{{- $_ := set $one "type" (default (replace "-" "_" $one.name) $one.type) }}
{{- $adapters = append $adapters $one }}
{{- end }}
{{- dict "adapters" $adapters | toJson }}
{{- end }}

{{- define "dragoman.image" -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .appVersion .image.tag }}{{ end }}
{{- end }}

{{/* "yes" if there is TLS. */}}
{{- define "dragoman.hasTls" -}}
{{- if or .Values.tls.existingSecret .Values.tls.certManager.issuerRef }}yes{{ end }}
{{- end }}

{{- define "dragoman.routerTlsSecret" -}}
{{- default (printf "%s-router-tls" (include "dragoman.fullname" .)) .Values.tls.existingSecret }}
{{- end }}

{{/* Takes (dict "root" $ "adapter" one). */}}
{{- define "dragoman.adapterTlsSecret" -}}
{{- $made := printf "%s-%s-tls" (include "dragoman.fullname" .root) .adapter.name }}
{{- coalesce .adapter.tlsSecret .root.Values.tls.existingSecret $made }}
{{- end }}

{{- define "dragoman.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create }}{{ include "dragoman.fullname" . }}-router
{{- else }}default{{ end }}
{{- end }}

{{- define "dragoman.routerAddress" -}}
{{ include "dragoman.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.router.service.port }}
{{- end }}

{{- define "dragoman.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.runAs }}
runAsGroup: {{ .Values.runAs }}
fsGroup: {{ .Values.runAs }}
# Else the rights of files that must be private would be widened at each start.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "dragoman.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where a process finds its certificate, and the token of calls over TCP. */}}
{{- define "dragoman.tcpEnv" -}}
- {name: DRAGOMAN_TLS_CERT, value: /etc/dragoman/tls/tls.crt}
- {name: DRAGOMAN_TLS_KEY, value: /etc/dragoman/tls/tls.key}
- {name: DRAGOMAN_TLS_CA, value: /etc/dragoman/tls/ca.crt}
- name: DRAGOMAN_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.auth.existingSecret }}, key: {{ .Values.auth.key }}}}
{{- end }}

{{/*
Makes directories that only their user can enter, of which containers mount one each: a volume itself can be written by
others of its group, or by all, and Dragoman trusts no such directory. Takes (dict "root" $ "image" image "paths" list
"mounts" list).
*/}}
{{- define "dragoman.directories" -}}
name: directories
image: {{ .image }}
imagePullPolicy: {{ .pullPolicy }}
command: [install, -d, -m, "0700"]
args:
{{- range .paths }}
  - {{ . }}
{{- end }}
securityContext:
  {{- include "dragoman.containerSecurity" .root | nindent 2 }}
resources:
  requests: {cpu: 10m, memory: 16Mi}
  limits: {memory: 64Mi}
volumeMounts:
{{- range .mounts }}
  - {{ toJson . }}
{{- end }}
{{- end }}

{{/* Takes (dict "address" address). */}}
{{/*
The kubelet's own probe, at the port of health alone: no program starts in the container, however busy the node is.
Takes (dict "port" number "service" name).
*/}}
{{- define "dragoman.healthProbe" -}}
grpc: {port: {{ .port }}{{ with .service }}, service: {{ . }}{{ end }}}
timeoutSeconds: 10
{{- end }}

{{- define "dragoman.spread" -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "dragoman.routerSelector" $ | nindent 6 }}
{{- end }}
{{- end }}

{{- define "dragoman.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end }}
