;;; qwen-companion-backend.el --- The companion's Python process  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Starts the Python process, connects to it, supervises it and stops it.
;; Everything here is asynchronous: no function waits for the process.

;;; Code:

(require 'cl-lib)
(require 'epc nil t)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-environment)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-programs)
(require 'qwen-companion-timers)

;; The dependency is missing in a clone, or if package-vc has found no archive
;; with it.
(unless (featurep 'epc)
  (user-error "The package epc, which qwen-companion needs, is not installed; add MELPA to `package-archives', then M-x package-install RET epc"))

(defvar qwen-companion-state-functions nil
  "Abnormal hook run when the state of the companion changes.
Each function gets the new state, see `qwen-companion-state'.")

(defvar qwen-companion-backend-methods nil
  "Alist of the methods that the Python process may call: (METHOD . FUNCTION).
FUNCTION gets the property list of the call and returns at once; its value
is the answer.")

(defvar qwen-companion-backend-connected-hook nil
  "Hook run when a Python process can be called, at its start and after a restart.")

(defvar qwen-companion-backend-disconnected-hook nil
  "Hook run when the connection to a Python process is closed.
Pending requests will not be answered.")

(defvar qwen-companion-backend-call-failed-functions nil
  "Abnormal hook run when a call of the Python process has failed.
Each function gets the method and the payload of the call.")

(defvar qwen-companion-backend-environment-function #'ignore
  "Function that returns changes to the environment of the process.
Its value is a list of elements like those of `process-environment'.")

(defvar qwen-companion-backend-proposals-function #'ignore
  "Function that returns the open proposals a new process must know.
Its value is a list of property lists (:id :session :path :digest).")

;;; State

(defconst qwen-companion-backend--protocol 1
  "Number of the protocol spoken with the Python process.")

(defconst qwen-companion-backend--start-limit '(2 . 15)
  "Time limit for the start of a process: (SECONDS . COUNT).
Fail after COUNT runs of a timer of SECONDS.")

(defconst qwen-companion-backend--restart-limit '(5 . 60)
  "Maximum of restarts in a period: (COUNT . SECONDS).")

(defconst qwen-companion-backend--ping-limit '(1.8 . 4)
  "Time limit for answers of a process: (SECONDS . COUNT).
Ping it every SECONDS, and replace it after COUNT pings without an answer.
It may be reading a proposal of 100 MB before it answers.")

(defconst qwen-companion-backend--retry-delay 60
  "Seconds after a failure until a new process is tried.")

(defconst qwen-companion-backend--exit-codes
  '((3 . package-missing) (4 . python-too-old) (5 . port-taken) (6 . bad-hello))
  "Alist of the exit codes of the process that have a special meaning.
The process defines them in its `__main__.py'.")

(cl-defstruct (qwen-companion-backend--connection
               (:constructor qwen-companion-backend--make-connection)
               (:copier nil))
  "A Python process and the connection to it.
MANAGER is EPC's manager, nil until it is connected.  TIMER checks whether
the process is ready, and then whether it still answers.  UNANSWERED
counts the runs of TIMER since the start or the last answer.  PUBLISHED
and SERVING are non-nil after these messages; the process is ready then."
  process manager timer (unanswered 0) published serving)

(cl-defstruct (qwen-companion-backend--server
               (:constructor qwen-companion-backend--make-server)
               (:copier nil))
  "State that outlives a Python process and is handed to the next one.
PORT is the server's port; RESERVE is a local socket that reserves it
between two processes, see `qwen-companion-backend--make-reserve'.
SESSIONS are the connected CLIs, as last reported.  SPOOL is the private
directory for long texts, FILES are the names of the discovery files."
  port reserve sessions spool files)

(defvar qwen-companion-backend--state 'off
  "The state of the companion, see `qwen-companion-state'.")
(defvar qwen-companion-backend--failure nil
  "Text of the last failure, nil if there was none since the process was ready.")
(defvar qwen-companion-backend--connection nil
  "The Python process and the connection to it, nil when there is none.")
(defvar qwen-companion-backend--server (qwen-companion-backend--make-server)
  "The state that is kept between processes; a new value resets it.")
;; Not in the structs: a backtrace shows the structs passed to functions.
(defvar qwen-companion-backend--secret nil
  "The secret in each call between Emacs and this process.")
(defvar qwen-companion-backend--token nil
  "The token that the CLIs show to the server; it outlives a process.")
(defvar qwen-companion-backend--retry-timer nil
  "Timer that retries after a failure.")
(defvar qwen-companion-backend--restarts nil
  "Times of the latest restarts, newest first.")
(defvar qwen-companion-backend--noticed nil
  "Texts that `qwen-companion-backend-notice-once' has shown since the start.")

(defun qwen-companion-state ()
  "Return the state of the companion as a symbol.
One of `off', `starting', `ready' (CLIs are served) and `error' (it
could not be started, see the message)."
  qwen-companion-backend--state)

(defun qwen-companion-backend-failure ()
  "Return why the companion is in the state `error', a string, else nil."
  (and (eq qwen-companion-backend--state 'error)
       qwen-companion-backend--failure))

(defun qwen-companion-backend-sessions ()
  "Return the connected CLIs, a list of property lists.
:id names the connection, :protocol is the version of its protocol,
:client and :version are those of the CLI, each \"\" when not known, and
:streaming is non-nil while it listens.

Further keys are there when the CLI's process was found, which it is
soon after it has connected if it is one of this user's on this machine
and not behind a tunnel: :pid, :started (a string that differs from that
of any other process with this id), its :directory at that time (nil if
unknown), its :family (`qwen', `gemini' or nil), and
:ancestors, the ids of the process, its parent and so on up to the child
of this Emacs; or up to the first process there is when it runs outside
of this Emacs.

One at another place has its :place, no :pid, and :ancestors that are ids
of that machine, to be shown and compared but never looked up here."
  (qwen-companion-backend--server-sessions qwen-companion-backend--server))

(defun qwen-companion-backend-note-question (id question)
  "Record that the CLI of the session ID asks QUESTION in its terminal.
Without a Python process, its hooks cannot report that."
  (setf (qwen-companion-backend--server-sessions qwen-companion-backend--server)
        (mapcar (lambda (session)
                  (if (not (equal id (qwen-companion-session-id session)))
                      session
                    (let ((state (copy-sequence (qwen-companion-session-state session))))
                      (setq state (plist-put state :activity 'asking)
                            state (plist-put state :question question))
                      (plist-put (copy-sequence session) :state state))))
                (qwen-companion-backend-sessions))))

(defun qwen-companion-backend-port ()
  "Return the port at which CLIs are served, nil if unknown."
  (qwen-companion-backend--server-port qwen-companion-backend--server))

(defun qwen-companion-backend-session (id)
  "Return the connected CLI ID, see `qwen-companion-backend-sessions'.
Return nil if it has disconnected."
  (cl-find id (qwen-companion-backend-sessions)
           :key #'qwen-companion-session-id :test #'equal))

(defun qwen-companion-backend-process-text (session)
  "Return the process id of SESSION as text, or nil if unknown.
For another machine, append its name."
  (when-let* ((pid (or (qwen-companion-session-pid session)
                       (car (qwen-companion-session-ancestors session)))))
    (if-let* ((place (qwen-companion-session-place session)))
        (format "%d at %s" pid (qwen-companion-places-label place))
      (number-to-string pid))))

(defun qwen-companion-backend-spool ()
  "Return the private directory for long texts, nil if there is none."
  (qwen-companion-backend--server-spool qwen-companion-backend--server))

(defun qwen-companion-backend-connected-p ()
  "Return non-nil when the Python process can be called."
  (and (qwen-companion-backend--manager) t))

(defun qwen-companion-backend--process ()
  "Return the Python process, nil when there is none."
  (and qwen-companion-backend--connection
       (qwen-companion-backend--connection-process
        qwen-companion-backend--connection)))

(defun qwen-companion-backend--manager ()
  "Return the EPC manager of the Python process, nil when not connected."
  (and qwen-companion-backend--connection
       (qwen-companion-backend--connection-manager
        qwen-companion-backend--connection)))

(defun qwen-companion-backend--set-state (state)
  "Make STATE the state of the companion; run `qwen-companion-state-functions'."
  (unless (eq state qwen-companion-backend--state)
    (setq qwen-companion-backend--state state)
    (run-hook-with-args 'qwen-companion-state-functions state))
  (force-mode-line-update t))

;;; Starting

(defun qwen-companion-backend--random ()
  "Return a random string of 64 hexadecimal digits, fit for a secret."
  (if (gnutls-available-p)
      (secure-hash 'sha256 'iv-auto 64)
    (with-temp-buffer
      (set-buffer-multibyte nil)
      (qwen-companion-programs-call "head" "-c" "64" "/dev/urandom")
      (secure-hash 'sha256 (current-buffer)))))

(defun qwen-companion-backend-start ()
  "Start the Python process; return at once.
The state becomes `starting', then `ready' or `error'."
  (setq qwen-companion-backend--failure nil)
  (qwen-companion-backend--launch))

(defun qwen-companion-backend--launch ()
  "Start a process, reusing the previous one's port, token and sessions."
  (qwen-companion-timers-cancel qwen-companion-backend--retry-timer)
  (qwen-companion-backend--set-state 'starting)
  (let ((python (qwen-companion-environment-python)))
    (cond
     ((not (file-directory-p qwen-companion-environment-source))
      (qwen-companion-backend--fail
       (format "the package is incomplete: %s is missing; reinstall it"
               (abbreviate-file-name qwen-companion-environment-source))))
     ((not python)
      (qwen-companion-backend--fail
       (format "no Python found as %s; install Python %s or later, or customize `qwen-companion-python'"
               (or qwen-companion-python "python3")
               qwen-companion-environment-oldest-python)))
     (t
      (condition-case err
          (qwen-companion-backend--spawn python)
        (error
         (qwen-companion-backend--fail (error-message-string err) t)))))))

(defconst qwen-companion-backend--longest-directory 60
  "Longest name in bytes of a directory with room for the names of sockets.
The system allows 104 to 108 bytes for the whole name.")

(defun qwen-companion-backend--make-spool ()
  "Make a private directory for long texts and sockets, and return its name.
Make it in /tmp if the name of the temporary directory is too long for a
socket.  If that is impossible, signal a `file-error' with the remedy."
  (condition-case err
      (let ((temporary-file-directory
             (if (> (string-bytes temporary-file-directory)
                    qwen-companion-backend--longest-directory)
                 "/tmp/"
               temporary-file-directory)))
        (file-name-as-directory (make-temp-file "qwen-companion-" t)))
    (file-error
     (signal 'file-error
             (list (format "cannot create a private directory in %s (%s); make room there, or set TMPDIR before Emacs starts"
                           (abbreviate-file-name temporary-file-directory)
                           (qwen-companion-backend-file-error-reason err)))))))

(defun qwen-companion-backend-file-error-reason (err)
  "Return the system's message of the `file-error' ERR."
  (let ((reason (nth 2 err)))
    (if (stringp reason) reason (error-message-string err))))

(defun qwen-companion-backend--spawn (python)
  "Run the server with the interpreter PYTHON and greet it."
  ;; A cleaner of temporary files may have removed it.
  (unless (and (qwen-companion-backend-spool)
               (file-directory-p (qwen-companion-backend-spool)))
    (setf (qwen-companion-backend--server-spool qwen-companion-backend--server)
          (qwen-companion-backend--make-spool)))
  (unless (qwen-companion-backend--server-port qwen-companion-backend--server)
    (qwen-companion-backend--make-reserve))
  (setq qwen-companion-backend--secret (qwen-companion-backend--random))
  (let* ((process-environment
          (append (funcall qwen-companion-backend-environment-function) process-environment))
         (errors (make-pipe-process
                  :name "qwen-companion-errors"
                  :buffer (generate-new-buffer " *qwen-companion errors*" t)
                  :coding 'utf-8-unix
                  :noquery t
                  :filter #'qwen-companion-backend--log-filter
                  :sentinel #'ignore))
         (process
          (qwen-companion-programs-start
           :name "qwen-companion"
           :command (qwen-companion-programs-python
                     python qwen-companion-environment-source "qwen_companion")
           :connection-type 'pipe
           :coding 'utf-8-unix
           :noquery t
           :filter #'qwen-companion-backend--filter
           :sentinel #'qwen-companion-backend--sentinel
           :stderr errors)))
    (process-put process 'errors errors)
    ;; Killing its buffer would end the process's standard error, so it has
    ;; none.  But it cannot be created without one.
    (let ((buffer (process-buffer errors)))
      (set-process-buffer errors nil)
      (kill-buffer buffer))
    (setq qwen-companion-backend--connection
          (qwen-companion-backend--make-connection :process process))
    (qwen-companion-backend--later qwen-companion-backend--start-limit
                                   #'qwen-companion-backend--await-start)
    (condition-case nil
        (process-send-string process (qwen-companion-backend--hello))
      ;; It has ended already: the sentinel reports the reason.
      (error nil))))

(defun qwen-companion-backend--make-reserve ()
  "Make a socket to keep the server's port from other users.
The first Python process sends it a descriptor that holds the port, see
python/qwen_companion/base/listening.py.  The connection is never accepted,
so the descriptor stays open in the system until this socket is closed:
when the process is killed, no other user can take the port."
  (qwen-companion-backend--drop-reserve)
  (let ((file (expand-file-name ".reserve" (qwen-companion-backend-spool))))
    (setf (qwen-companion-backend--server-reserve qwen-companion-backend--server)
          ;; Without a reserve the port may be lost; too long a name signals a
          ;; plain error.
          (ignore-errors
            (make-network-process :name "qwen-companion-reserve"
                                  :family 'local :service file
                                  :server t :stop t :noquery t)))))

(defun qwen-companion-backend--drop-reserve ()
  "Close the socket reserving the port, if there is one."
  (when-let* ((reserve (qwen-companion-backend--server-reserve
                        qwen-companion-backend--server)))
    (setf (qwen-companion-backend--server-reserve qwen-companion-backend--server)
          nil)
    (delete-process reserve)
    (delete-file (process-contact reserve :service))))

(defun qwen-companion-backend--hello ()
  "Return the first line for a new process, a property list."
  (let ((reserve (qwen-companion-backend--server-reserve
                  qwen-companion-backend--server))
        (print-escape-newlines t)
        print-length print-level)
    (concat
     (prin1-to-string
      (list :protocol qwen-companion-backend--protocol
            :secret qwen-companion-backend--secret
            :emacs-pid (emacs-pid)
            :port (or (qwen-companion-backend--server-port
                       qwen-companion-backend--server)
                      0)
            :reserve (and reserve (process-contact reserve :service))
            :token (or qwen-companion-backend--token "")
            :spool (qwen-companion-backend-spool)
            :sessions (qwen-companion-backend-sessions)
            :proposals (funcall qwen-companion-backend-proposals-function)))
     "\n")))

(defun qwen-companion-backend--filter (process output)
  "Connect when PROCESS has printed its port; OUTPUT is part of the line."
  (let ((line (concat (process-get process 'line) output)))
    (process-put process 'line line)
    (when (and (eq process (qwen-companion-backend--process))
               (not (qwen-companion-backend--manager))
               (string-match "\\`\\([0-9]+\\)\n" line))
      (qwen-companion-backend--connect
       (string-to-number (match-string 1 line))))))

(defun qwen-companion-backend--connect (port)
  "Open the EPC connection to PORT."
  (condition-case err
      (let ((connection (epc:connect "127.0.0.1" port)))
        (with-current-buffer (epc:connection-buffer connection)
          (rename-buffer " *qwen-companion connection*" t)
          ;; It belongs to no project, whose buffers may be killed together.
          (setq default-directory "/")
          (add-hook 'kill-buffer-query-functions #'qwen-companion-backend--query-kill nil t))
        (qwen-companion-backend--wipe-after-input
         (epc:connection-process connection))
        (setf (qwen-companion-backend--connection-manager
               qwen-companion-backend--connection)
              (epc:init-epc-layer
               (make-epc:manager :title "qwen-companion" :port port
                                 :connection connection)))
        (qwen-companion-backend--define-methods qwen-companion-backend-methods)
        (run-hooks 'qwen-companion-backend-connected-hook))
    (error
     (qwen-companion-backend--log-filter
      (process-get (qwen-companion-backend--process) 'errors)
      (format "The connection was refused: %s\n" (error-message-string err)))
     ;; The process may be dying.  The sentinel does the rest.
     (delete-process (qwen-companion-backend--process)))))

(defun qwen-companion-backend--query-kill ()
  "Refuse, with a message, to kill the current buffer while its connection is open."
  (or (not (process-live-p (get-buffer-process (current-buffer))))
      (ignore
       (message "qwen-companion: this buffer is the connection to the backend; M-x qwen-companion-mode closes it"))))

(defun qwen-companion-backend-wipe-conversions ()
  "Erase the internal buffer with the last decoded text."
  (when-let* ((buffer (get-buffer " *code-conversion-work*")))
    (with-current-buffer buffer
      (erase-buffer))))

(defun qwen-companion-backend--wipe-after-input (process)
  "Decode each output of PROCESS, then erase the buffer that Emacs decoded it in.
The secret is in each call by the Python process."
  (let ((filter (process-filter process)))
    (set-process-filter process
                        (lambda (process output)
                          (unwind-protect
                              (funcall filter process output)
                            (qwen-companion-backend-wipe-conversions))))))

(defun qwen-companion-backend--define-methods (methods)
  "Let the connected process call METHODS."
  (pcase-dolist (`(,method . ,function) methods)
    (epc:define-method (qwen-companion-backend--manager) method
                       (qwen-companion-backend--guarded function))))

(defun qwen-companion-backend-add-methods (methods)
  "Let the Python process call METHODS too, until the companion is off.
They are in the form of the variable `qwen-companion-backend-methods'."
  (let ((new (cl-set-difference methods qwen-companion-backend-methods
                                :test #'equal)))
    (setq qwen-companion-backend-methods
          (append qwen-companion-backend-methods new))
    (when (qwen-companion-backend--manager)
      (qwen-companion-backend--define-methods new))))

(defun qwen-companion-backend--guarded (function)
  "Return FUNCTION as an EPC method that demands the secret.
An error in it is reported by its symbol only and never reaches the
debugger: its backtrace would show the secret.  A call whose connection is
closed before it is answered gets no answer."
  (let* ((manager (qwen-companion-backend--manager))
         (connection (epc:connection-process (epc:manager-connection manager)))
         (open-p (lambda ()
                   (and (eq manager (qwen-companion-backend--manager))
                        ;; The connection to a killed process may be closed
                        ;; before its sentinel is called.
                        (process-live-p connection)))))
    (lambda (secret payload)
      (let ((answer
             (when (and (eq manager (qwen-companion-backend--manager))
                        (equal secret qwen-companion-backend--secret))
               (qwen-companion-timers-check)
               (condition-case err
                   (qwen-companion-buffers-locally
                     (funcall function payload))
                 (error
                  (qwen-companion-backend--log "Error in %s: %s" function
                                               (error-message-string err))
                  (when (funcall open-p)
                    (error "%s" (car err))))))))
        (if (funcall open-p)
            answer
          ;; `epc' sends an answer only when it calls this back.
          (deferred:new))))))

;;; Calling

(defun qwen-companion-backend-wait (done seconds)
  "Wait until calling DONE gives non-nil, SECONDS at most.
Return its value.  For commands only; the user can quit."
  (let ((end (+ (float-time) seconds))
        ;; Timers and filters of other packages need them.
        (file-name-handler-alist (default-toplevel-value 'file-name-handler-alist))
        (steps 0)
        value)
    (while (and (not (setq value (funcall done)))
                (< (float-time) end))
      ;; Any output ends a wait.  Timers of `epc' handle it a moment later, and
      ;; their end does not end a wait.
      (if (accept-process-output nil (if (> steps 0) 0.001 0.05))
          (setq steps 50)
        (cl-decf steps)))
    value))

(defconst qwen-companion-backend-not-unicode
  "[^\0-\uD7FF\uE000-\U0010FFFF]"
  "Matches characters outside Unicode: raw bytes, halves of surrogate pairs.")

(defun qwen-companion-backend--with-bytes (value)
  "Return VALUE, part of a payload, with bytes that are not Unicode escaped.
Names of files may contain such bytes.  `prin1' prints them in a form that
only Lisp reads; so byte N becomes the half of a surrogate pair #xDC00 + N."
  (cond ((stringp value)
         (let ((text (string-to-multibyte value)))
           (if (string-match-p qwen-companion-backend-not-unicode text)
               (replace-regexp-in-string
                qwen-companion-backend-not-unicode
                (lambda (char)
                  (mapconcat (lambda (byte) (string (+ #xDC00 byte)))
                             (encode-coding-string char 'utf-8-unix) ""))
                text t t)
             value)))
        ((proper-list-p value) (mapcar #'qwen-companion-backend--with-bytes value))
        (t value)))

(defun qwen-companion-backend-call (method payload)
  "Call METHOD of the Python process with PAYLOAD, a property list.
Return non-nil if the call was sent; answers are separate calls."
  (when-let* ((manager (qwen-companion-backend--manager)))
    (qwen-companion-timers-check)
    (condition-case err
        (progn
          (deferred:error
            (epc:call-deferred manager method
                               (list qwen-companion-backend--secret
                                     (qwen-companion-backend--with-bytes payload)))
            (lambda (reason)
              (qwen-companion-backend--log "Call of %s failed: %s"
                                           method reason)
              (run-hook-with-args 'qwen-companion-backend-call-failed-functions
                                  method payload)))
          t)
      (error
       (qwen-companion-backend--log "Call of %s not sent: %s" method (car err))
       nil))))

(defun qwen-companion-backend-call-if-changed (method payload last)
  "Call METHOD with PAYLOAD unless that equals LAST, the payload sent last.
Return the payload that the Python process now has: PAYLOAD, or LAST if
the call could not be sent."
  (if (and (not (equal payload last))
           (qwen-companion-backend-call method payload))
      payload
    last))

;;; Requests

(defvar qwen-companion-backend--requests nil
  "Alist of the unanswered requests: (ID . CALLBACK).")

(defvar qwen-companion-backend--last-request 0
  "Number of the last request.")

(defun qwen-companion-backend-request (method payload callback)
  "Call METHOD with PAYLOAD and the id of a new request; return at once.
CALLBACK gets the message that answers it, or nil if there will be none,
for example because PAYLOAD is nil.  It is not called before this returns."
  (let ((id (cl-incf qwen-companion-backend--last-request)))
    (push (cons id callback) qwen-companion-backend--requests)
    (unless (and payload
                 (qwen-companion-backend-connected-p)
                 (qwen-companion-backend-call method (append (list :id id) payload)))
      (run-at-time 0 nil #'qwen-companion-backend-answer id nil))))

(defun qwen-companion-backend-answer (id payload)
  "Answer the request ID with the message PAYLOAD, nil if it has failed.
Return non-nil if that request was unanswered."
  (when-let* ((request (assq id qwen-companion-backend--requests)))
    (setq qwen-companion-backend--requests (delq request qwen-companion-backend--requests))
    (funcall (cdr request) payload)
    t))

(defun qwen-companion-backend-on-answer (payload)
  "Handle the message PAYLOAD, which answers a request."
  (qwen-companion-backend-answer (plist-get payload :id) payload)
  nil)

(defun qwen-companion-backend-fail-requests ()
  "Fail all requests: their Python process has ended."
  (pcase-dolist (`(,id . ,_) qwen-companion-backend--requests)
    (run-at-time 0 nil #'qwen-companion-backend-answer id nil)))

;;; Supervision

;; A stopped process, or one in an endless loop, does not end by itself, and
;; the CLIs wait for it.  The limits count runs of a timer, not seconds: while
;; Emacs is busy, or the machine sleeps, the timer does not run, and the clock
;; may be set.

(defun qwen-companion-backend--later (limit function)
  "Make FUNCTION the next run of the timer, after the seconds of LIMIT."
  ;; Not a repeating timer: that would catch up all at once on runs for which
  ;; Emacs had no time.
  (let ((connection qwen-companion-backend--connection))
    (qwen-companion-timers-cancel (qwen-companion-backend--connection-timer connection))
    (setf (qwen-companion-backend--connection-timer connection)
          (run-at-time (car limit) nil function))))

(defun qwen-companion-backend--ping-later ()
  "Schedule the next ping."
  (qwen-companion-backend--later qwen-companion-backend--ping-limit
                                 #'qwen-companion-backend--ping))

(defun qwen-companion-backend--ping ()
  "Ping the process; replace it if it hangs."
  (qwen-companion-timers-check)
  (let* ((connection qwen-companion-backend--connection)
         (manager (qwen-companion-backend--manager))
         (turns (qwen-companion-backend--connection-unanswered connection)))
    (if (>= turns (cdr qwen-companion-backend--ping-limit))
        (progn
          (qwen-companion-backend-notice
           "the Python process does not answer; starting a new one")
          (delete-process (qwen-companion-backend--process)))
      (cl-incf (qwen-companion-backend--connection-unanswered connection))
      (qwen-companion-backend--ping-later)
      (if (zerop turns)
          (ignore-errors
            (deferred:nextc
              (epc:call-deferred manager 'ping
                                 (list qwen-companion-backend--secret nil))
              (lambda (_)
                (setf (qwen-companion-backend--connection-unanswered connection)
                      0))))
        ;; A command that waits for another process may run timers, but read
        ;; input from that process only.
        (accept-process-output (epc:connection-process
                                (epc:manager-connection manager))
                               0 nil t)))))

(defun qwen-companion-backend-unicode-p (name)
  "Return non-nil if all characters of NAME are Unicode.
Any other character would make the whole call fail."
  (not (string-match-p qwen-companion-backend-not-unicode name)))

;;; Ending

(defun qwen-companion-backend-stop ()
  "Stop the Python process and forget everything about it.
The process removes its files when its input ends, even if Emacs is about
to exit."
  (let ((process (qwen-companion-backend--process)))
    (setq qwen-companion-backend--requests nil)
    (qwen-companion-backend-call 'stop nil)
    (qwen-companion-backend--disconnect)
    (when (process-live-p process)
      (set-process-sentinel process #'qwen-companion-backend--stopped)
      ;; It may be reading there.
      (process-put process 'spool (qwen-companion-backend-spool))
      (setf (qwen-companion-backend--server-spool qwen-companion-backend--server)
            nil)
      ;; A process that does not react must not stay.
      (process-put process 'killer
                   (run-at-time 5 nil #'qwen-companion-timers-call
                                #'delete-process process))
      ;; Its input has ended, so it may have ended by now.
      (ignore-errors
        ;; Emacs reports nothing about a process that was stopped by a signal.
        (continue-process process)
        (process-send-eof process))))
  (qwen-companion-timers-cancel qwen-companion-backend--retry-timer)
  (qwen-companion-backend--forget-server)
  (setq qwen-companion-backend--restarts nil
        qwen-companion-backend--failure nil
        qwen-companion-backend--noticed nil)
  (qwen-companion-backend--kill-log)
  (qwen-companion-backend--set-state 'off))

(defun qwen-companion-backend--stopped (process _event)
  "Clean up after PROCESS, which was asked to stop."
  (unless (process-live-p process)
    (cancel-timer (process-get process 'killer))
    (qwen-companion-backend--remove-spool (process-get process 'spool))
    (unless (qwen-companion-backend--process)
      (qwen-companion-backend--kill-log))))

(defun qwen-companion-backend--remove-spool (directory)
  "Delete the private DIRECTORY, if there is one."
  (when (and directory (file-directory-p directory))
    (delete-directory directory t)))

(defun qwen-companion-backend--forget-server ()
  "Forget all state that outlives a process, and remove its files."
  (qwen-companion-backend--remove-files)
  (qwen-companion-backend--drop-reserve)
  (qwen-companion-backend--remove-spool (qwen-companion-backend-spool))
  (setq qwen-companion-backend--server (qwen-companion-backend--make-server)
        qwen-companion-backend--token nil
        qwen-companion-backend--secret nil))

(defun qwen-companion-backend--disconnect ()
  "Close the connection, if there is one, and forget it and its process."
  (when-let* ((connection qwen-companion-backend--connection))
    (setq qwen-companion-backend--connection nil)
    (cancel-timer (qwen-companion-backend--connection-timer connection))
    (when-let* ((manager (qwen-companion-backend--connection-manager connection)))
      (epc:stop-epc manager)
      (qwen-companion-backend-fail-requests)
      (run-hooks 'qwen-companion-backend-disconnected-hook))))

(defun qwen-companion-backend--sentinel (process _event)
  "Handle the unexpected end of PROCESS: restart it, or fail with a reason."
  (when (and (eq process (qwen-companion-backend--process))
             (not (process-live-p process)))
    (let* ((status (process-exit-status process))
           (meaning (alist-get status qwen-companion-backend--exit-codes)))
      ;; Its last output has the reason; read it before the pipe is closed.
      (while (accept-process-output (process-get process 'errors) 0))
      (qwen-companion-backend--disconnect)
      (cond
       ((and (eq meaning 'port-taken)
             (qwen-companion-backend--server-port qwen-companion-backend--server))
        ;; Another program took the port between two processes.  CLIs that have
        ;; connected to it since have shown the token, and the files name that
        ;; port.
        (qwen-companion-backend--remove-files)
        (qwen-companion-backend--drop-reserve)
        (setq qwen-companion-backend--server
              (qwen-companion-backend--make-server
               :spool (qwen-companion-backend-spool))
              qwen-companion-backend--token nil)
        (qwen-companion-backend--launch))
       ((memq meaning '(package-missing python-too-old bad-hello))
        (qwen-companion-backend--fail
         (qwen-companion-backend--explain process status)))
       ((qwen-companion-backend--restart-allowed-p)
        (push (float-time) qwen-companion-backend--restarts)
        (qwen-companion-backend--launch))
       (t
        (qwen-companion-backend--fail
         (qwen-companion-backend--explain process status) t))))))

(defun qwen-companion-backend--restart-allowed-p ()
  "Return non-nil unless the process has been restarted too often."
  (pcase-let ((`(,count . ,seconds) qwen-companion-backend--restart-limit))
    ;; The clock may have been set back since.
    (< (cl-count-if (lambda (time) (<= 0 (- (float-time) time) seconds))
                    qwen-companion-backend--restarts)
       count)))

(defun qwen-companion-backend--explain (process status)
  "Return a message with the reason why PROCESS ended, with STATUS, and the remedy."
  (let ((python (abbreviate-file-name (car (process-command process))))
        (detail (qwen-companion-backend--last-line process)))
    (pcase (alist-get status qwen-companion-backend--exit-codes)
      ('package-missing
       (format "%s lacks a package (%s); %s"
               python detail (qwen-companion-environment-remedy)))
      ('python-too-old
       (format "%s is too old (%s); customize `qwen-companion-python' to Python %s or later"
               python detail qwen-companion-environment-oldest-python))
      ('bad-hello
       (format "the Lisp and Python parts are different versions (%s); reinstall the package and restart Emacs"
               detail))
      (_
       (format "the Python process ended with status %d (%s); see M-x qwen-companion-log"
               status detail)))))

(defun qwen-companion-backend--await-start ()
  "Fail if the process is still not ready in time."
  (let ((connection qwen-companion-backend--connection))
    (pcase-let ((`(,seconds . ,count) qwen-companion-backend--start-limit))
      (if (< (cl-incf (qwen-companion-backend--connection-unanswered connection))
             count)
          (qwen-companion-backend--later qwen-companion-backend--start-limit
                                         #'qwen-companion-backend--await-start)
        (qwen-companion-backend--fail
         (format "the Python process is not ready after %d s; see M-x qwen-companion-log"
                 (* seconds count))
         t)))))

(defun qwen-companion-backend--fail (text &optional retry)
  "Stop everything, show TEXT and enter the state `error'.
With RETRY non-nil, try again after `qwen-companion-backend--retry-delay'."
  (let ((process (qwen-companion-backend--process)))
    (qwen-companion-backend--disconnect)
    (when (process-live-p process)
      (delete-process process)))
  (qwen-companion-backend--forget-server)
  (let ((text (concat text (if retry
                               ".  Trying again every minute; turning \
`qwen-companion-mode' off and on tries at once"
                             ", then turn `qwen-companion-mode' off and on")))
        (before qwen-companion-backend--failure))
    (setq qwen-companion-backend--failure text
          qwen-companion-backend--retry-timer
          (and retry
               (run-at-time qwen-companion-backend--retry-delay nil
                            #'qwen-companion-backend--launch)))
    (qwen-companion-backend--set-state 'error)
    (qwen-companion-backend--log "%s" text)
    ;; Not every minute.
    (unless (equal text before)
      (message "qwen-companion: %s" text))))

(defun qwen-companion-backend--remove-files ()
  "Delete the discovery files unless another process has replaced them.
The process does so itself, but it may have been killed."
  (let ((file-name-handler-alist nil))
    (dolist (file (qwen-companion-backend--server-files
                   qwen-companion-backend--server))
      (ignore-errors
        (with-temp-buffer
          (insert-file-contents-literally file)
          (when (search-forward qwen-companion-backend--token nil t)
            (delete-file file))))))
  (setf (qwen-companion-backend--server-files qwen-companion-backend--server)
        nil))

;;; Messages about the process itself

(defun qwen-companion-backend-on-published (payload)
  "Handle the `published' message PAYLOAD: save port and token for a restart."
  (setf (qwen-companion-backend--server-port qwen-companion-backend--server)
        (qwen-companion-published-port payload)
        qwen-companion-backend--token (qwen-companion-published-token payload)
        (qwen-companion-backend--connection-published
         qwen-companion-backend--connection)
        t)
  (qwen-companion-backend--check-ready))

(defun qwen-companion-backend-on-files (payload)
  "Handle the `files' message PAYLOAD: save the names of the discovery files."
  (setf (qwen-companion-backend--server-files qwen-companion-backend--server)
        (qwen-companion-file-list-files payload))
  nil)

(defun qwen-companion-backend--check-updated ()
  "Tell the user to restart if the package was updated."
  (when (qwen-companion-environment-updated-p)
    (qwen-companion-backend-notice-once
     (format "the package was updated, but Emacs still runs the old version; %s"
             (qwen-companion-environment-restart)))))

(defun qwen-companion-backend-on-serving (_payload)
  "Handle the `serving' message: requests of CLIs are answered now."
  (qwen-companion-backend--check-updated)
  (when (qwen-companion-environment-outdated-p)
    (qwen-companion-backend-notice-once
     "the Python environment belongs to another version of the package; M-x qwen-companion-install-backend updates it"))
  (setf (qwen-companion-backend--connection-unanswered
         qwen-companion-backend--connection)
        0)
  (qwen-companion-backend--ping-later)
  (setf (qwen-companion-backend--connection-serving
         qwen-companion-backend--connection)
        t)
  (qwen-companion-backend--check-ready)
  nil)

(defun qwen-companion-backend--check-ready ()
  "Enter the state `ready' once CLIs can find the server and are answered.
Either message may come first."
  (let ((connection qwen-companion-backend--connection))
    (when (and (qwen-companion-backend--connection-published connection)
               (qwen-companion-backend--connection-serving connection))
      (qwen-companion-backend--set-state 'ready)
      (when qwen-companion-backend--failure
        (setq qwen-companion-backend--failure nil)
        (qwen-companion-backend-notice "the companion is running again")))))

(defun qwen-companion-backend-on-sessions (payload)
  "Handle the `sessions' message PAYLOAD: store the connected CLIs."
  (let ((changed (qwen-companion-session-changes-sessions payload))
        (gone (qwen-companion-session-changes-gone payload))
        kept)
    ;; A new list: it is compared with the previous one.
    (dolist (session (qwen-companion-backend-sessions))
      (let* ((id (qwen-companion-session-id session))
             (new (cl-find id changed :key #'qwen-companion-session-id
                           :test #'equal)))
        (unless (member id gone)
          (push (or new session) kept))
        (setq changed (remq new changed))))
    (when changed
      (qwen-companion-backend--check-updated))
    (setf (qwen-companion-backend--server-sessions qwen-companion-backend--server)
          (append (nreverse kept) changed)))
  (force-mode-line-update t))

(defun qwen-companion-backend-on-notice (payload)
  "Handle the `notice' message PAYLOAD: show its warning or error."
  (qwen-companion-backend-notice (qwen-companion-notice-text payload)))

(defun qwen-companion-backend-notice (text)
  "Show TEXT, a warning or an error, and add it to the log."
  (qwen-companion-backend--log "%s" text)
  (message "qwen-companion: %s" text)
  nil)

(defun qwen-companion-backend-notice-once (text)
  "Show TEXT as `qwen-companion-backend-notice' does, unless it was shown already."
  (unless (member text qwen-companion-backend--noticed)
    (push text qwen-companion-backend--noticed)
    (qwen-companion-backend-notice text)))

;;; Log

(defconst qwen-companion-backend--log-name "*qwen-companion log*")

(defconst qwen-companion-backend--log-limit 100000
  "Most characters in the log; the oldest are deleted first.")

(defun qwen-companion-backend--log-buffer ()
  "Return the log buffer; create it if necessary."
  (or (get-buffer qwen-companion-backend--log-name)
      (with-current-buffer (get-buffer-create qwen-companion-backend--log-name)
        (special-mode)
        (buffer-disable-undo)
        (current-buffer))))

(defun qwen-companion-backend--kill-log ()
  "Kill the log buffer, if there is one."
  (when-let* ((buffer (get-buffer qwen-companion-backend--log-name)))
    (kill-buffer buffer)))

(defun qwen-companion-backend--log (format &rest arguments)
  "Add a line to the log: FORMAT filled with ARGUMENTS."
  (qwen-companion-backend--log-insert
   (concat (apply #'format format arguments) "\n")))

(defun qwen-companion-backend--log-filter (process output)
  "Add OUTPUT of PROCESS to the log, and store its end in the process."
  (let ((said (concat (process-get process 'said) output)))
    (process-put process 'said (substring said (max 0 (- (length said) 1000)))))
  ;; A process that was told to stop must not restore a log that was deleted.
  (when (or (get-buffer qwen-companion-backend--log-name)
            (and (qwen-companion-backend--process)
                 (eq process (process-get (qwen-companion-backend--process)
                                          'errors))))
    (qwen-companion-backend--log-insert output)))

(defun qwen-companion-backend--log-insert (text)
  "Add TEXT to the end of the log and delete its oldest part if it is long."
  (with-current-buffer (qwen-companion-backend--log-buffer)
    (let ((inhibit-read-only t))
      (save-excursion
        (goto-char (point-max))
        (insert text)
        (when (> (buffer-size) qwen-companion-backend--log-limit)
          (delete-region (point-min)
                         (- (point-max) qwen-companion-backend--log-limit)))))))

(defun qwen-companion-backend--last-line (process)
  "Return the last line of the errors of PROCESS, or a placeholder."
  (let ((said (string-trim
               (or (process-get (process-get process 'errors) 'said) ""))))
    (if (string-empty-p said)
        "no error message"
      (car (last (split-string said "\n"))))))

(defun qwen-companion-log ()
  "Show the log of the Python process."
  (interactive)
  (pop-to-buffer (qwen-companion-backend--log-buffer)))

;;; A new environment

(defun qwen-companion-backend--environment-changed ()
  "Use the environment that was just made."
  (if (eq qwen-companion-backend--state 'error)
      (qwen-companion-backend-start)
    (when (eq qwen-companion-backend--state 'ready)
      (message "qwen-companion: the Python environment is ready; turn `qwen-companion-mode' off and on to use it"))))

(add-hook 'qwen-companion-environment-made-hook
          #'qwen-companion-backend--environment-changed)

(provide 'qwen-companion-backend)
;;; qwen-companion-backend.el ends here
