;;; qwen-companion-chat-state.el --- The session behind a chat buffer  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Each chat buffer has one session of the daemon.  This file stores the
;; reports of the Python process on it, sends requests, passes on their
;; replies, and loads the session again after the daemon or the process was
;; replaced.
;;
;; It is independent of the display: a chat has its own functions in
;; `qwen-companion-chat-handlers' and `qwen-companion-chat-session-hook'.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-daemon)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-spool)

;;; State

(defvar-local qwen-companion-chat-session-id nil
  "Id of the session of this chat, nil until the daemon has opened one.")

(defun qwen-companion-chat-state-conversation ()
  "Return the id of the session of this buffer if it is a chat, else nil."
  qwen-companion-chat-session-id)

(add-hook 'qwen-companion-kept-plans-conversation-functions
          #'qwen-companion-chat-state-conversation)

(defvar-local qwen-companion-chat-session nil
  "The latest report of the session of this chat, a property list.
Its :state is `off' after Emacs has disconnected from the daemon.")

(defvar qwen-companion-chat-session-hook nil
  "Hook run in a chat after the state of its session or the daemon has changed.")

(defvar-local qwen-companion-chat-handlers nil
  "Alist (METHOD . FUNCTION) for the reports about the session of this chat.
FUNCTION is called in the chat with the payload of the report.")

(defvar-local qwen-companion-chat-state--reconnect-form nil
  "Command that gets the daemon of this chat again, (COMMAND ROOT), or nil.
See `qwen-companion-daemon-reconnect-form'.")

(defvar-local qwen-companion-chat-state--pending-open nil
  "Non-nil when the session is to be opened once a daemon is connected.")

;;; State kept by Emacs only

(defvar-local qwen-companion-chat-state--unfinished nil
  "The shown turns that have not ended well: an alist (TURN . CHANGES).
Both the turns and their CHANGES, reports, are newest first.  If the
daemon and the Python process are replaced, only Emacs has them.")

(defun qwen-companion-chat-state--record (change)
  "Add CHANGE to its turn, and drop a turn that has ended well."
  (when-let* ((turn (qwen-companion-daemon-change-turn change)))
    (let ((kind (qwen-companion-daemon-change-kind change)))
      (when (and (eq 'text kind)
                 (eq 'user (qwen-companion-daemon-text-voice change))
                 (not (qwen-companion-daemon-text-parent change))
                 (not (assoc turn qwen-companion-chat-state--unfinished)))
        (qwen-companion-chat-state--forget-unended)
        (push (list turn) qwen-companion-chat-state--unfinished))
      (when-let* ((entry (assoc turn qwen-companion-chat-state--unfinished)))
        (if (and (eq 'end kind) (eq 'done (qwen-companion-daemon-end-outcome change)))
            (setq qwen-companion-chat-state--unfinished
                  (delq entry qwen-companion-chat-state--unfinished))
          (push change (cdr entry)))))))

(defun qwen-companion-chat-state--forget-unended ()
  "Drop each turn without an end; it has ended well."
  (setq qwen-companion-chat-state--unfinished
        (cl-remove-if-not (lambda (entry)
                            (cl-find 'end (cdr entry) :key #'qwen-companion-daemon-change-kind))
                          qwen-companion-chat-state--unfinished)))

(defun qwen-companion-chat-state--shown ()
  "Return the visible unfinished items, oldest first, in the form sent."
  (let (changes texts)
    (cl-flet ((flush (text)
                (when text
                  (push (append (qwen-companion-spool-pack (apply #'concat (nreverse texts)))
                                (qwen-companion-chat-state--without :text text))
                        changes))
                (setq texts nil)))
      (pcase-dolist (`(,_ . ,newest-first) (reverse qwen-companion-chat-state--unfinished))
        (let (before)
          (dolist (change (reverse newest-first))
            (unless (qwen-companion-chat-state--goes-on-p before change)
              (flush before)
              (setq before nil))
            (if (eq 'text (qwen-companion-daemon-change-kind change))
                (progn (setq before (or before change))
                       (push (qwen-companion-daemon-text-text change) texts))
              (push change changes)))
          (flush before))))
    (nreverse changes)))

(defun qwen-companion-chat-state--goes-on-p (before change)
  "Return non-nil when CHANGE continues the text of BEFORE, a change or nil."
  (and before
       (cl-loop for reader in '(qwen-companion-daemon-change-kind
                                qwen-companion-daemon-text-voice
                                qwen-companion-daemon-text-by
                                qwen-companion-daemon-text-parent
                                qwen-companion-daemon-text-background)
                always (equal (funcall reader before) (funcall reader change)))))

(defun qwen-companion-chat-state--without (key change)
  "Return CHANGE without KEY and its value."
  (cl-loop for (each value) on change by #'cddr
           unless (eq each key) append (list each value)))

(defun qwen-companion-chat-state--unspool (change)
  "Return CHANGE with its text inside, if that is in a file.
If it cannot be read, return CHANGE unchanged."
  (if (and (eq 'text (qwen-companion-daemon-change-kind change))
           (not (qwen-companion-daemon-text-text change)))
      (condition-case nil
          (append (list :text (qwen-companion-spool-text change))
                  (qwen-companion-chat-state--without :text-file change))
        (error change))
    change))

(defun qwen-companion-chat-buffers ()
  "Return the buffers of all chats, the most recently used first."
  (cl-remove-if-not
   (lambda (buffer)
     (provided-mode-derived-p (buffer-local-value 'major-mode buffer)
                              'qwen-companion-chat-mode))
   (buffer-list)))

(defun qwen-companion-chat-buffer (id)
  "Return the chat buffer of the session ID, or nil."
  (cl-find id (qwen-companion-chat-buffers)
           :key (lambda (buffer) (buffer-local-value 'qwen-companion-chat-session-id buffer))
           :test #'equal))

(defun qwen-companion-chat-session-ended-p ()
  "Return non-nil when this session has to be loaded before it can be used."
  (memq (qwen-companion-daemon-session-state qwen-companion-chat-session)
        '(closed dead off)))

(defun qwen-companion-chat-trouble ()
  "Return the reason why the session is unusable, with a remedy, or nil.
The remedy comes first, since the reason may be longer than the line."
  (let ((text (qwen-companion-daemon-session-text qwen-companion-chat-session)))
    (pcase (qwen-companion-daemon-session-state qwen-companion-chat-session)
      ('off (concat (if text "No session" "Disconnected from the daemon")
                    (if (memq (qwen-companion-state) '(off error))
                        "; M-x qwen-companion-mode, then M-x qwen-companion-chat here"
                      "; M-x qwen-companion-chat here")
                    " tries again" (and text (concat ": " text))))
      ('disconnected (concat "Disconnected" (and text (concat ": " text))))
      ((and state (or 'closed 'dead))
       (substitute-command-keys
        (format "%s; \\[qwen-companion-chat-reload] loads the session again%s"
                (if (eq state 'dead) "Ended" "Left") (if text (concat ": " text) ""))))
      (_ (and (memq (qwen-companion-daemon-state) '(unreachable refused))
              (qwen-companion-daemon-description))))))

(defun qwen-companion-chat-state--set (state text)
  "Set the state of the session to STATE, with TEXT, until the next report."
  (setq qwen-companion-chat-session
        (append (list :state state :text text :queue nil :turn nil)
                qwen-companion-chat-session))
  (run-hooks 'qwen-companion-chat-session-hook))

(defun qwen-companion-chat-state--set-all (state text &optional pending)
  "Set the state of all chats with a living session to STATE, with TEXT.
With PENDING non-nil, load their sessions again once there is a daemon."
  (dolist (buffer (qwen-companion-chat-buffers))
    (with-current-buffer buffer
      (unless (qwen-companion-chat-session-ended-p)
        (setq qwen-companion-chat-state--pending-open pending)
        (qwen-companion-chat-state--set state text)))))

;;; Requests

(defvar qwen-companion-chat-state--requests nil
  "Alist of unanswered requests: (REQUEST BUFFER . CALLBACK).")

(defvar qwen-companion-chat-state--early-reports nil
  "Reports of sessions without a chat while one is being opened.
Newest first, each (METHOD . PAYLOAD).")

(defconst qwen-companion-chat-state--hooks
  '((qwen-companion-daemon-functions . qwen-companion-chat-state--report)
    (qwen-companion-daemon-disconnected-hook . qwen-companion-chat-state--on-left)
    (qwen-companion-backend-disconnected-hook . qwen-companion-chat-state--on-process-gone))
  "The hooks in use while there are chats: (HOOK . FUNCTION).")

(defun qwen-companion-chat-call (method payload &optional callback)
  "Call METHOD of the Python process with PAYLOAD, a property list.
CALLBACK is called once with the reply, in the current buffer, even if the
process ends before it answers.  Without CALLBACK, show an error."
  (qwen-companion-buffers-set-hooks qwen-companion-chat-state--hooks t)
  (let ((request (symbol-name (gensym "chat-"))))
    (push (cons request (cons (current-buffer) callback))
          qwen-companion-chat-state--requests)
    (unless (qwen-companion-backend-call
             method (append (list :request request) payload))
      (qwen-companion-chat-state--on-reply
       (list :request request :problem 'unreachable
             :error "The companion's process is not running")))))

(defun qwen-companion-chat-state--on-reply (payload)
  "Call the callback of the request that the reply PAYLOAD answers."
  (when-let* ((entry (assoc (qwen-companion-daemon-reply-request payload)
                            qwen-companion-chat-state--requests)))
    (setq qwen-companion-chat-state--requests
          (delq entry qwen-companion-chat-state--requests))
    (pcase-let ((`(,_ ,buffer . ,callback) entry))
      (cond ((not (buffer-live-p buffer))
             ;; The chat was killed while its session was opened.
             (when-let* ((session (qwen-companion-daemon-reply-session payload)))
               (unless (qwen-companion-chat-buffer session)
                 (qwen-companion-backend-call 'daemon-close
                                              (list :session session :end nil)))))
            (callback (with-current-buffer buffer (funcall callback payload)))
            ((qwen-companion-daemon-reply-error payload)
             (qwen-companion-backend-notice (qwen-companion-daemon-reply-error payload)))))
    (unless qwen-companion-chat-state--requests
      (qwen-companion-chat-state--drop-early-reports)
      (unless (qwen-companion-chat-buffers)
        (qwen-companion-chat-state--unwatch)))))

(defun qwen-companion-chat-state--fail-requests (text)
  "Answer all requests with the problem `unsure' and the error TEXT."
  (dolist (entry qwen-companion-chat-state--requests)
    (qwen-companion-chat-state--on-reply
     (list :request (car entry) :error text :problem 'unsure))))

;;; Reports

(defun qwen-companion-chat-state--unwatch ()
  "Stop handling the reports about the daemon."
  (qwen-companion-buffers-set-hooks qwen-companion-chat-state--hooks nil)
  (qwen-companion-chat-state--drop-early-reports))

(defun qwen-companion-chat-state--report (method payload)
  "Handle the report METHOD with PAYLOAD, in the chat of its session."
  (let* ((id (qwen-companion-daemon-report-session payload))
         (buffer (and id (qwen-companion-chat-buffer id)))
         (handler (and buffer
                       (alist-get method (buffer-local-value
                                          'qwen-companion-chat-handlers buffer)))))
    (cond ((eq method 'daemon-reply) (qwen-companion-chat-state--on-reply payload))
          ((eq method 'daemon-state) (qwen-companion-chat-state--on-daemon-state payload))
          (handler
           (with-current-buffer buffer
             (save-restriction
               (widen)
               (funcall handler (qwen-companion-chat-state--note method payload)))))
          ((and id (not buffer) qwen-companion-chat-state--requests)
           (push (cons method payload) qwen-companion-chat-state--early-reports))
          (id (qwen-companion-chat-state--drop-texts payload)))))

(defun qwen-companion-chat-state--note (method payload)
  "Store the report METHOD with PAYLOAD for views that are drawn later.
Return PAYLOAD, with the texts of a conversation inside instead of in
files."
  (pcase method
    ('daemon-turn
     (let ((changes (mapcar #'qwen-companion-chat-state--unspool
                            (qwen-companion-daemon-report-changes payload))))
       (mapc #'qwen-companion-chat-state--record changes)
       (plist-put (copy-sequence payload) :changes changes)))
    ('daemon-reset
     (setq qwen-companion-chat-state--unfinished nil)
     payload)
    ((and 'daemon-session
          (guard (eq 'idle (qwen-companion-daemon-session-state payload))))
     (qwen-companion-chat-state--forget-unended)
     payload)
    (_ payload)))

(defun qwen-companion-chat-state--drop-texts (payload)
  "Remove the files of the texts in PAYLOAD, which are not needed."
  (qwen-companion-spool-drop payload)
  (mapc #'qwen-companion-spool-drop (qwen-companion-daemon-report-changes payload)))

(defun qwen-companion-chat-state--drop-early-reports ()
  "Forget the reports of sessions without a chat."
  (pcase-dolist (`(,_ . ,payload) qwen-companion-chat-state--early-reports)
    (qwen-companion-chat-state--drop-texts payload))
  (setq qwen-companion-chat-state--early-reports nil))

(defun qwen-companion-chat-state--on-daemon-state (payload)
  "Handle the state of the connection in PAYLOAD, for all chats."
  (when (eq 'refused (qwen-companion-daemon-connection-state payload))
    ;; The daemon has ended or never existed; the next may be another one.
    (qwen-companion-chat-state--set-all
     'off (qwen-companion-daemon-connection-text payload) t))
  (dolist (buffer (qwen-companion-chat-buffers))
    (with-current-buffer buffer
      (when (and qwen-companion-chat-state--pending-open
                 (eq 'connected (qwen-companion-daemon-connection-state payload)))
        (qwen-companion-chat-state--open))
      (run-hooks 'qwen-companion-chat-session-hook))))

(defun qwen-companion-chat-state--on-left ()
  "Tell all chats that Emacs has disconnected from the daemon."
  (qwen-companion-chat-state--fail-requests "Disconnected from the daemon.")
  (qwen-companion-chat-state--set-all 'off nil)
  (qwen-companion-chat-state--unwatch))

(defun qwen-companion-chat-state--on-process-gone ()
  "Tell all chats that the Python process has ended; it is replaced."
  (qwen-companion-chat-state--fail-requests "The companion's process has ended.")
  (qwen-companion-chat-state--set-all
   'disconnected "the companion's process is being replaced" t))

;;; Opening and leaving a session

(defun qwen-companion-chat-connect-daemon (chat)
  "Connect to a daemon unless connected; if impossible, signal a remedy.
If CHAT, a buffer or nil, had a daemon, use that one again."
  (when (memq (qwen-companion-daemon-state) '(off refused))
    (pcase (and chat (or (qwen-companion-daemon-reconnect-form)
                         (buffer-local-value 'qwen-companion-chat-state--reconnect-form
                                             chat)))
      (`(,command ,root) (funcall command root))
      (_ (call-interactively #'qwen-companion-daemon-connect)))))

(defun qwen-companion-chat-open-session (id)
  "Load the session ID in this chat, or open a new one if ID is nil.
Do so as soon as the daemon is connected."
  (qwen-companion-buffers-set-hooks qwen-companion-chat-state--hooks t)
  (setq qwen-companion-chat-session-id id
        qwen-companion-chat-state--pending-open t)
  (qwen-companion-chat-state--set nil nil)
  (when (eq 'connected (qwen-companion-daemon-state))
    (qwen-companion-chat-state--open)))

(defun qwen-companion-chat-state--open ()
  "Request the session of this chat, or a new one, from the daemon."
  (setq qwen-companion-chat-state--pending-open nil
        qwen-companion-chat-state--reconnect-form (qwen-companion-daemon-reconnect-form))
  (if qwen-companion-chat-session-id
      (qwen-companion-chat-reload)
    (qwen-companion-chat-call
     'daemon-open (list :root nil :scope 'new)
     (lambda (reply)
       (if-let* ((error (qwen-companion-daemon-reply-error reply)))
           (progn
             (qwen-companion-chat-state--set 'off error)
             (qwen-companion-backend-notice error))
         (setq qwen-companion-chat-session-id (qwen-companion-daemon-reply-session reply))
         (let ((early (nreverse qwen-companion-chat-state--early-reports)))
           (setq qwen-companion-chat-state--early-reports nil)
           (pcase-dolist (`(,method . ,payload) early)
             (qwen-companion-chat-state--report method payload))))))))

(defun qwen-companion-chat-reload (&rest _)
  "Read the conversation from the daemon again.
This also loads a session that has ended or was left."
  (interactive nil qwen-companion-chat-mode)
  (unless qwen-companion-chat-session-id
    (user-error "No session yet"))
  (when (eq 'off (qwen-companion-daemon-state))
    (user-error "Disconnected from the daemon; M-x qwen-companion-chat here connects again"))
  (qwen-companion-chat-call
   'daemon-load
   (list :session qwen-companion-chat-session-id
         :shown (unless (memq (qwen-companion-daemon-session-state qwen-companion-chat-session)
                              '(idle busy waiting cancelling))
                  (qwen-companion-chat-state--shown)))
   (lambda (reply)
     (when-let* ((error (qwen-companion-daemon-reply-error reply)))
       (qwen-companion-backend-notice error)
       ;; No report about it will follow.
       (when (memq (qwen-companion-daemon-session-state qwen-companion-chat-session)
                   '(nil disconnected off))
         (qwen-companion-chat-state--set 'off error))))))

(defun qwen-companion-chat-leave-session ()
  "Leave the session of this chat, which is being killed.
Other clients keep the session."
  (when (and qwen-companion-chat-session-id
             (not (qwen-companion-chat-session-ended-p)))
    (qwen-companion-backend-call
     'daemon-close (list :session qwen-companion-chat-session-id :end nil)))
  (unless (or qwen-companion-chat-state--requests
              (remq (current-buffer) (qwen-companion-chat-buffers)))
    (qwen-companion-chat-state--unwatch)))

(provide 'qwen-companion-chat-state)
;;; qwen-companion-chat-state.el ends here
