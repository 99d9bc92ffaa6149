{{- define "training-operator.selector" -}}
app.kubernetes.io/name: training-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "training-operator.labels" -}}
{{ include "training-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* kind -> the field of its spec that has the pods; the other fields of its spec, as a schema; whether it scales. */}}
{{- define "training-operator.kinds" -}}
PyTorchJob:
  replicas: pytorchReplicaSpecs
  scales: true
  fields:
    nprocPerNode: {type: string}
    elasticPolicy:
      type: object
      properties:
        minReplicas: {type: integer, format: int32}
        maxReplicas: {type: integer, format: int32}
        maxRestarts: {type: integer, format: int32}
        nProcPerNode: {type: integer, format: int32}
        rdzvBackend: {type: string}
        rdzvHost: {type: string}
        rdzvPort: {type: integer, format: int32}
        rdzvId: {type: string}
        rdzvConf:
          type: array
          items: {type: object, properties: {key: {type: string}, value: {type: string}}}
        standalone: {type: boolean}
        metrics:
          type: array
          items: {type: object, x-kubernetes-preserve-unknown-fields: true}
TFJob:
  replicas: tfReplicaSpecs
  scales: false
  fields:
    enableDynamicWorker: {type: boolean}
    successPolicy: {type: string}
XGBoostJob:
  replicas: xgbReplicaSpecs
  scales: false
  fields: {}
PaddleJob:
  replicas: paddleReplicaSpecs
  scales: true
  fields:
    elasticPolicy:
      type: object
      properties:
        minReplicas: {type: integer, format: int32}
        maxReplicas: {type: integer, format: int32}
        maxRestarts: {type: integer, format: int32}
        metrics:
          type: array
          items: {type: object, x-kubernetes-preserve-unknown-fields: true}
JAXJob:
  replicas: jaxReplicaSpecs
  scales: true
  fields: {}
{{- end }}
