{{- define "mpi-operator.selector" -}}
app.kubernetes.io/name: mpi-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mpi-operator.labels" -}}
{{ include "mpi-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
