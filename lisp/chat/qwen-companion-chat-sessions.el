;;; qwen-companion-chat-sessions.el --- List the sessions of qwen serve  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A daemon has sessions of this Emacs and of other clients.  The command
;; `qwen-companion-chats' lists them, `qwen-companion-chat-switch' goes to one
;; by its title.  A session without a chat in this Emacs is loaded.
;;
;; The daemon does not report changes of the list.  It is requested when the
;; list is opened, by `g', and when a session that is open here has changed.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-chat)
(require 'qwen-companion-completion)
(require 'qwen-companion-daemon)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-list)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defvar qwen-companion-chat-sessions--listed nil
  "The sessions in the latest `daemon-sessions' report.")

(defvar qwen-companion-chat-sessions--states nil
  "Alist (ID . STATE) of the sessions that are open here.")

(defvar qwen-companion-chat-sessions--watchers 0
  "Number of lists and minibuffers that show the sessions.")

;;; State

(defun qwen-companion-chat-sessions--request-list ()
  "Request the list of sessions if a daemon is connected."
  (when (eq (qwen-companion-daemon-state) 'connected)
    (qwen-companion-backend-call 'daemon-list nil)))

(defun qwen-companion-chat-sessions--on-report (method payload)
  "Handle the report METHOD of the Python process with PAYLOAD."
  (pcase method
    ('daemon-sessions
     (setq qwen-companion-chat-sessions--listed (qwen-companion-daemon-sessions-sessions payload))
     (qwen-companion-chat-sessions--refresh))
    ('daemon-session
     (let ((id (qwen-companion-daemon-report-session payload))
           (state (qwen-companion-daemon-session-state payload)))
       (unless (eq state (alist-get id qwen-companion-chat-sessions--states nil nil #'equal))
         (setf (alist-get id qwen-companion-chat-sessions--states nil nil #'equal) state)
         ;; For its time and number of clients.
         (qwen-companion-chat-sessions--request-list)))
     (qwen-companion-chat-sessions--refresh))
    ('daemon-state
     (qwen-companion-chat-sessions--request-list)
     (qwen-companion-chat-sessions--refresh))))

(defun qwen-companion-chat-sessions--watch ()
  "Handle reports for one more list or minibuffer."
  (cl-incf qwen-companion-chat-sessions--watchers)
  ;; After the chats, whose state it shows.
  (add-hook 'qwen-companion-daemon-functions #'qwen-companion-chat-sessions--on-report 90))

(defun qwen-companion-chat-sessions--unwatch ()
  "Stop handling reports if this was the last list or minibuffer."
  (when (zerop (cl-decf qwen-companion-chat-sessions--watchers))
    (remove-hook 'qwen-companion-daemon-functions #'qwen-companion-chat-sessions--on-report)
    (setq qwen-companion-chat-sessions--listed nil
          qwen-companion-chat-sessions--states nil)))

(defun qwen-companion-chat-sessions--all ()
  "Return all sessions, listed ones and open chats.
A new or dead session may be missing from the list."
  (append
   (mapcar (lambda (session)
             (append (qwen-companion-chat-sessions--from-chat
                      (qwen-companion-daemon-listed-id session))
                     session))
           qwen-companion-chat-sessions--listed)
   (cl-loop for buffer in (qwen-companion-chat-buffers)
            for id = (buffer-local-value 'qwen-companion-chat-session-id buffer)
            unless (or (null id)
                       (cl-find id qwen-companion-chat-sessions--listed :test #'equal
                                :key #'qwen-companion-daemon-listed-id))
            collect (append (list :id id) (qwen-companion-chat-sessions--from-chat id)))))

(defun qwen-companion-chat-sessions--from-chat (id)
  "Return the chat's data about the session ID, a property list, or nil.
This is newer than the list."
  (when-let* ((chat (qwen-companion-chat-buffer id)))
    (let* ((session (buffer-local-value 'qwen-companion-chat-session chat))
           (state (qwen-companion-daemon-session-state session))
           (title (qwen-companion-daemon-session-title session))
           (clients (and (not (memq state '(closed dead off)))
                         (qwen-companion-daemon-session-clients session))))
      (append (and state (list :state state))
              (and title (list :title title))
              (and clients (list :clients clients))))))

(defun qwen-companion-chat-sessions--find (id)
  "Return the session ID, or nil."
  (cl-find id (qwen-companion-chat-sessions--all) :test #'equal
           :key #'qwen-companion-daemon-listed-id))

(defun qwen-companion-chat-sessions--ended-p (session)
  "Return non-nil when SESSION is only on the disk of the daemon's host."
  (and (not (qwen-companion-daemon-session-state session))
       (not (qwen-companion-daemon-listed-busy session))
       (eql 0 (qwen-companion-daemon-listed-clients session))))

;;; In words

(defun qwen-companion-chat-sessions--title (session)
  "Return the title of SESSION on one line."
  (let ((title (qwen-companion-untrusted-text
                (or (qwen-companion-daemon-listed-title session) ""))))
    (if (string-blank-p title) "(no title)" title)))

(defun qwen-companion-chat-sessions--time (session)
  "Return the time of the last change of SESSION, in local time, or \"\"."
  (if-let* ((updated (qwen-companion-daemon-listed-updated session)))
      (format-time-string "%F %R" (/ updated 1000))
    ""))

(defun qwen-companion-chat-sessions--state (session)
  "Return the state of SESSION in words."
  (pcase (qwen-companion-daemon-session-state session)
    ('nil (cond ((qwen-companion-daemon-listed-busy session) "busy")
                ((qwen-companion-chat-sessions--ended-p session) "ended")
                (t "idle")))
    ('waiting "waits for an answer")
    (state (symbol-name state))))

;;; The list

(defun qwen-companion-chat-sessions--entry (session)
  "Return the entry of the list for SESSION."
  (list (qwen-companion-daemon-listed-id session)
        (vector (if (qwen-companion-chat-buffer (qwen-companion-daemon-listed-id session))
                    "*"
                  "")
                (qwen-companion-chat-sessions--title session)
                (qwen-companion-chat-sessions--time session)
                (format "%s" (or (qwen-companion-daemon-listed-clients session) ""))
                (qwen-companion-chat-sessions--state session))))

(defun qwen-companion-chat-sessions--fewer-p (a b)
  "Return non-nil if the session in entry A has fewer clients than that in B."
  (< (string-to-number (aref (cadr a) 3))
     (string-to-number (aref (cadr b) 3))))

(defun qwen-companion-chat-sessions--empty ()
  "Return why the list has no session."
  (if (eq (qwen-companion-daemon-state) 'connected)
      "No session yet"
    (format "Not connected to a daemon (%s)" (qwen-companion-daemon-state))))

(defun qwen-companion-chat-sessions--refresh ()
  "Update the list if it is in a window; point stays on its session."
  (qwen-companion-list-with-buffer 'qwen-companion-chats-mode
    (qwen-companion-timers-update-visible)))

(defun qwen-companion-chat-sessions--at-point ()
  "Return the id of the session at point."
  (qwen-companion-daemon-listed-id (qwen-companion-list-at-point)))

(defun qwen-companion-chat-sessions-open ()
  "Go to the chat of the session at point; create it if necessary."
  (interactive nil qwen-companion-chats-mode)
  (qwen-companion-chat-sessions--visit (qwen-companion-chat-sessions--at-point)))

(defun qwen-companion-chat-sessions--visit (id)
  "Go to the chat of the session ID, and load the session if it has ended."
  (let* ((chat (qwen-companion-chat-buffer id))
         (ended (and chat (with-current-buffer chat
                            (qwen-companion-chat-session-ended-p)))))
    (pop-to-buffer (or chat (qwen-companion-chat-make-buffer id)))
    (goto-char (point-max))
    (when ended
      (qwen-companion-chat-reload))))

(defun qwen-companion-chat-sessions--close (id end)
  "Leave the session ID, or with END non-nil, end it for all its clients.
Its chat stays."
  (unless (eq (qwen-companion-daemon-state) 'connected)
    (user-error "Not connected to a daemon (%s)" (qwen-companion-daemon-state)))
  (with-current-buffer (or (qwen-companion-chat-buffer id) (current-buffer))
    (qwen-companion-chat-call
     'daemon-close (list :session id :end end)
     (lambda (reply)
       (if-let* ((error (qwen-companion-daemon-reply-error reply)))
           (qwen-companion-backend-notice error)
         (qwen-companion-chat-sessions--request-list))))))

(defun qwen-companion-chat-sessions-leave ()
  "Leave the session at point; other clients keep it."
  (interactive nil qwen-companion-chats-mode)
  (let ((id (qwen-companion-chat-sessions--at-point)))
    (unless (qwen-companion-chat-buffer id)
      (user-error "This session is not open in this Emacs"))
    (qwen-companion-chat-sessions--close id nil)))

(defun qwen-companion-chat-sessions-finish ()
  "End the session at point for all its clients."
  (interactive nil qwen-companion-chats-mode)
  (let ((id (qwen-companion-chat-sessions--at-point)))
    (when (qwen-companion-chat-sessions--ended-p (qwen-companion-list-row))
      (user-error "This session has already ended"))
    (when (y-or-n-p "End this session for all its clients? ")
      (qwen-companion-chat-sessions--close id t))))

(defun qwen-companion-chat-sessions--set-up ()
  "Handle reports while the current buffer is live."
  (qwen-companion-chat-sessions--watch)
  (add-hook 'kill-buffer-hook #'qwen-companion-chat-sessions--unwatch nil t))

(qwen-companion-list-define qwen-companion-chats-mode "Chats"
  "Major mode of the list of the sessions of `qwen serve'.
A star marks those that have a chat in this Emacs.
Info node `(qwen-companion)Sessions' is about it."
  (:buffer "*qwen-companion chats*"
   :thing "chat"
   :columns [("" 1 t) ("Title" 40 t) ("Changed" 16 t)
             ("Clients" 7 qwen-companion-chat-sessions--fewer-p :right-align t)
             ("State" 0 t)]
   :rows #'qwen-companion-chat-sessions--all
   :entry #'qwen-companion-chat-sessions--entry
   :find #'qwen-companion-chat-sessions--find
   :empty #'qwen-companion-chat-sessions--empty
   :load (lambda (by-user) (when by-user (qwen-companion-chat-sessions--request-list)))
   :set-up #'qwen-companion-chat-sessions--set-up)
  (visit qwen-companion-chat-sessions-open "Open" "open" :if (qwen-companion-list-row))
  ("+" qwen-companion-chat "New" "new")
  (end qwen-companion-chat-sessions-leave "Leave" "leave"
   :if (qwen-companion-chat-buffer (tabulated-list-get-id)))
  ("D" qwen-companion-chat-sessions-finish "End for All Clients" "end"
   :if (when-let* ((session (qwen-companion-list-row)))
         (not (qwen-companion-chat-sessions--ended-p session)))))

;;;###autoload
(defun qwen-companion-chats ()
  "List the sessions of the daemon: title, time, clients and state.
\\<qwen-companion-chats-mode-map> \\[qwen-companion-chat-sessions-open]
opens the chat of a session, even if other clients have it open, or it has
ended or is dead; it is loaded again then.
\\[qwen-companion-chat] begins a new one,
\\[qwen-companion-chat-sessions-leave] leaves one,
\\[qwen-companion-chat-sessions-finish] ends one, \\[revert-buffer] asks
the daemon anew."
  (interactive)
  (qwen-companion-list-open 'qwen-companion-chats-mode))

;;; Choosing by title

(defun qwen-companion-chat-sessions--name (session names)
  "Return a unique name for SESSION, its title, perhaps with a number.
NAMES is a hash table of the names given so far by session ids: a name
stays with its session when the list changes."
  (let ((id (qwen-companion-daemon-listed-id session))
        (title (qwen-companion-chat-sessions--title session)))
    (or (gethash id names)
        (puthash id
                 (cl-loop with given = (hash-table-values names)
                          for count from 1
                          for name = (if (= count 1) title (format "%s <%d>" title count))
                          unless (member name given) return name)
                 names))))

(defun qwen-companion-chat-sessions--choices (names)
  "Return an alist (NAME . SESSION) of all sessions.
NAMES is as for `qwen-companion-chat-sessions--name'."
  (mapcar (lambda (session)
            (cons (qwen-companion-chat-sessions--name session names) session))
          (qwen-companion-chat-sessions--all)))

(defun qwen-companion-chat-sessions--annotation (session)
  "Return the annotation of SESSION for completion."
  (let ((clients (qwen-companion-daemon-listed-clients session)))
    (string-join
     (delete "" (list (qwen-companion-chat-sessions--time session)
                      (qwen-companion-chat-sessions--state session)
                      (if (and clients (> clients 1))
                          (format "%d clients" clients)
                        "")))
     ", ")))

(defun qwen-companion-chat-sessions--read ()
  "Read a session and return its id, nil for none.
The default is the session of the most recent other chat."
  (let* ((names (make-hash-table :test #'equal))
         (other (car (remq (current-buffer) (qwen-companion-chat-buffers))))
         (session (and other (qwen-companion-chat-sessions--find
                              (buffer-local-value 'qwen-companion-chat-session-id other))))
         (default (and session (qwen-companion-chat-sessions--name session names)))
         (name (completing-read
                (format-prompt "Chat" default)
                ;; Include the sessions that the daemon lists meanwhile.
                (qwen-companion-completion-table
                 (lambda () (qwen-companion-chat-sessions--choices names))
                 'qwen-companion-chat #'qwen-companion-chat-sessions--annotation)
                nil t nil nil default)))
    (cl-loop for id being the hash-keys of names using (hash-values called)
             when (equal called name) return id)))

;;;###autoload
(defun qwen-companion-chat-switch ()
  "Go to the chat of a session of the daemon, chosen by its title.
Load the session if it is not open here.  The default is the most recent
other chat."
  (interactive)
  (qwen-companion-chat-sessions--watch)
  (let ((id (unwind-protect
                (progn
                  (qwen-companion-chat-sessions--request-list)
                  (qwen-companion-chat-sessions--read))
              (qwen-companion-chat-sessions--unwatch))))
    (unless id
      (user-error "No such session"))
    (qwen-companion-chat-sessions--visit id)))

(provide 'qwen-companion-chat-sessions)
;;; qwen-companion-chat-sessions.el ends here
