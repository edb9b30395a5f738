;;; qwen-companion-chat-sessions.el --- The sessions of a qwen serve  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; A daemon has many sessions, of this Emacs and of other clients.
;; `qwen-companion-chats' lists them, `qwen-companion-chat-switch' goes to
;; one by its title.  A session without a chat here is attached to, or read
;; from disk where it has ended; one that is dead is loaded again.
;;
;; The daemon does not tell when its list changes: it is asked when the list
;; is opened, by `g', and when a session that is open here has changed.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'tabulated-list)
(require 'qwen-companion-chat)
(require 'qwen-companion-daemon)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-untrusted)

(defconst qwen-companion-chat-sessions--buffer-name "*qwen-companion chats*")

(defvar qwen-companion-chat-sessions--known nil
  "The sessions as the daemon listed them last, see `daemon-sessions'.")

(defvar qwen-companion-chat-sessions--states nil
  "Alist of the sessions that are open here and their states as told last.")

(defvar qwen-companion-chat-sessions--watchers 0
  "How many lists and minibuffers show the sessions.")

;;; What is known

(defun qwen-companion-chat-sessions--buffer ()
  "Return the buffer of the list, or nil."
  (get-buffer qwen-companion-chat-sessions--buffer-name))

(defun qwen-companion-chat-sessions--ask ()
  "Ask for the list of sessions, if there is a daemon to ask."
  (when (eq (qwen-companion-daemon-state) 'connected)
    (qwen-companion-backend-call 'daemon-list nil)))

(defun qwen-companion-chat-sessions--take (method payload)
  "Note what the Python process reports: METHOD and its PAYLOAD."
  (pcase method
    ('daemon-sessions
     (setq qwen-companion-chat-sessions--known (qwen-companion-daemon-sessions-sessions payload))
     (qwen-companion-chat-sessions--refresh))
    ('daemon-session
     (let ((id (qwen-companion-daemon-report-session payload))
           (state (qwen-companion-daemon-session-state payload)))
       (unless (eq state (alist-get id qwen-companion-chat-sessions--states nil nil #'equal))
         (setf (alist-get id qwen-companion-chat-sessions--states nil nil #'equal) state)
         ;; When it changed, and how many have it open.
         (qwen-companion-chat-sessions--ask)))
     (qwen-companion-chat-sessions--refresh))
    ('daemon-state
     (qwen-companion-chat-sessions--ask)
     (qwen-companion-chat-sessions--refresh))))

(defun qwen-companion-chat-sessions--watch ()
  "Listen to the Python process; it is for one more who wants to know."
  (cl-incf qwen-companion-chat-sessions--watchers)
  ;; After the chats, of which it tells.
  (add-hook 'qwen-companion-daemon-functions #'qwen-companion-chat-sessions--take 90))

(defun qwen-companion-chat-sessions--unwatch ()
  "Listen no longer, if this was the last who wanted to know."
  (when (zerop (cl-decf qwen-companion-chat-sessions--watchers))
    (remove-hook 'qwen-companion-daemon-functions #'qwen-companion-chat-sessions--take)
    (setq qwen-companion-chat-sessions--known nil
          qwen-companion-chat-sessions--states nil)))

(defun qwen-companion-chat-sessions--all ()
  "Return the sessions: those listed last and those that have a chat.
One that is new or dead may be known to its chat only."
  (append
   (mapcar (lambda (session)
             (append (qwen-companion-chat-sessions--told
                      (qwen-companion-daemon-listed-id session))
                     session))
           qwen-companion-chat-sessions--known)
   (cl-loop for buffer in (qwen-companion-chat-buffers)
            for id = (buffer-local-value 'qwen-companion-chat-session-id buffer)
            unless (or (null id)
                       (cl-find id qwen-companion-chat-sessions--known :test #'equal
                                :key #'qwen-companion-daemon-listed-id))
            collect (append (list :id id) (qwen-companion-chat-sessions--told id)))))

(defun qwen-companion-chat-sessions--told (id)
  "Return what the chat of the session ID knows of it, a property list.
That is newer than what was listed.  With no chat, there is nothing."
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
  "Return what is known of the session ID, nil for nothing."
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
  "Return when SESSION changed, in local time, or the empty string."
  (if-let* ((updated (qwen-companion-daemon-listed-updated session)))
      (format-time-string "%F %R" (/ updated 1000))
    ""))

(defun qwen-companion-chat-sessions--state (session)
  "Return the state of SESSION in words."
  (pcase (qwen-companion-daemon-session-state session)
    ('nil (cond ((qwen-companion-daemon-listed-busy session) "busy")
                ((qwen-companion-chat-sessions--ended-p session) "ended, RET loads it")
                (t "idle")))
    ('waiting "waits for an answer")
    ((and state (or 'dead 'closed)) (format "%s, RET loads it again" state))
    (state (symbol-name state))))

(defun qwen-companion-chat-sessions--clients (session)
  "Return how many clients SESSION has, as text."
  (if-let* ((clients (qwen-companion-daemon-listed-clients session)))
      (number-to-string clients)
    ""))

(defun qwen-companion-chat-sessions--here (session)
  "Return a sign that SESSION has a chat in this Emacs, else the empty string."
  (if (qwen-companion-chat-buffer (qwen-companion-daemon-listed-id session)) "*" ""))

;;; The list

(defun qwen-companion-chat-sessions--entry (session)
  "Return the line of the list about SESSION."
  (list (qwen-companion-daemon-listed-id session)
        (vector (qwen-companion-chat-sessions--here session)
                (qwen-companion-chat-sessions--title session)
                (qwen-companion-chat-sessions--time session)
                (qwen-companion-chat-sessions--clients session)
                (qwen-companion-chat-sessions--state session))))

(defun qwen-companion-chat-sessions--fewer-p (a b)
  "Return non-nil when the session in entry A has fewer clients than that in B."
  (< (string-to-number (aref (cadr a) 3))
     (string-to-number (aref (cadr b) 3))))

(defun qwen-companion-chat-sessions--entries ()
  "Return the lines of the list."
  (or (mapcar #'qwen-companion-chat-sessions--entry
              (qwen-companion-chat-sessions--all))
      (list (list nil
                  (vector ""
                          (if (eq (qwen-companion-daemon-state) 'connected)
                              "No session yet"
                            (format "Not connected to a daemon (%s)"
                                    (qwen-companion-daemon-state)))
                          "" "" "")))))

(defun qwen-companion-chat-sessions--refresh ()
  "Print the list anew, if it is there; point stays at its session."
  (when-let* ((buffer (qwen-companion-chat-sessions--buffer)))
    (if-let* ((window (get-buffer-window buffer t)))
        ;; In its window, so that point stays on its line there.
        (with-selected-window window
          (tabulated-list-print t))
      (with-current-buffer buffer
        (tabulated-list-print t)))))

(defun qwen-companion-chat-sessions--at-point ()
  "Return the id of the session of the line at point."
  (or (tabulated-list-get-id)
      (user-error "There is no session on this line")))

(defun qwen-companion-chat-sessions-open ()
  "Go to the chat of the session at point; make one where there is none."
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
  "Leave the session ID; with END non-nil, end it for all its clients.
Its chat, if it has one here, stays and says so."
  (unless (eq (qwen-companion-daemon-state) 'connected)
    (user-error "Not connected to a daemon (%s)" (qwen-companion-daemon-state)))
  (with-current-buffer (or (qwen-companion-chat-buffer id) (current-buffer))
    (qwen-companion-chat-call
     'daemon-close (list :session id :end end)
     (lambda (reply)
       (if-let* ((error (qwen-companion-daemon-reply-error reply)))
           (qwen-companion-backend-notice error)
         (qwen-companion-chat-sessions--ask))))))

(defun qwen-companion-chat-sessions-leave ()
  "Leave the session at point; others go on with it, and it can be loaded again."
  (interactive nil qwen-companion-chats-mode)
  (let ((id (qwen-companion-chat-sessions--at-point)))
    (unless (qwen-companion-chat-buffer id)
      (user-error "This session is not open in this Emacs"))
    (qwen-companion-chat-sessions--close id nil)))

(defun qwen-companion-chat-sessions-finish ()
  "End the session at point for all its clients."
  (interactive nil qwen-companion-chats-mode)
  (let ((id (qwen-companion-chat-sessions--at-point)))
    (when (qwen-companion-chat-sessions--ended-p (qwen-companion-chat-sessions--find id))
      (user-error "This session has ended already"))
    (when (y-or-n-p "End this session for all its clients? ")
      (qwen-companion-chat-sessions--close id t))))

(defun qwen-companion-chat-sessions-new ()
  "Begin a new session."
  (interactive nil qwen-companion-chats-mode)
  (qwen-companion-chat t))

(defvar qwen-companion-chats-mode-map
  (let ((map (make-sparse-keymap)))
    (define-key map (kbd "RET") #'qwen-companion-chat-sessions-open)
    (define-key map "+" #'qwen-companion-chat-sessions-new)
    (define-key map "k" #'qwen-companion-chat-sessions-leave)
    (define-key map "D" #'qwen-companion-chat-sessions-finish)
    map)
  "Keys of the list of sessions.")

(define-derived-mode qwen-companion-chats-mode tabulated-list-mode "Chats"
  "Major mode of the list of the sessions of a `qwen serve'.
A star marks those that have a chat in this Emacs.

\\{qwen-companion-chats-mode-map}"
  :interactive nil
  (setq tabulated-list-format
        [("" 1 t) ("Title" 40 t) ("Changed" 16 t)
         ("Clients" 7 qwen-companion-chat-sessions--fewer-p :right-align t)
         ("State" 0 t)]
        tabulated-list-entries #'qwen-companion-chat-sessions--entries
        tabulated-list-padding 1)
  ;; What a title begins with must not turn the line around.
  (setq-local bidi-paragraph-direction 'left-to-right)
  (tabulated-list-init-header)
  (add-hook 'tabulated-list-revert-hook #'qwen-companion-chat-sessions--ask nil t)
  (add-hook 'kill-buffer-hook #'qwen-companion-chat-sessions--unwatch nil t)
  (qwen-companion-chat-sessions--watch))

;;;###autoload
(defun qwen-companion-chats ()
  "List the sessions of the daemon: title, time, clients and state.
\\<qwen-companion-chats-mode-map>
\\[qwen-companion-chat-sessions-open] opens the chat of a session, also of one that others have open,
that has ended or that is dead; the latter are loaded again.
\\[qwen-companion-chat-sessions-new] begins a new one, \\[qwen-companion-chat-sessions-leave] leaves one,
\\[qwen-companion-chat-sessions-finish] ends one, \\[revert-buffer] asks the daemon anew."
  (interactive)
  (let ((buffer (get-buffer-create qwen-companion-chat-sessions--buffer-name)))
    (with-current-buffer buffer
      (unless (derived-mode-p 'qwen-companion-chats-mode)
        (qwen-companion-chats-mode)))
    (pop-to-buffer buffer)
    (revert-buffer)))

;;; One by its title

(defun qwen-companion-chat-sessions--name (session names)
  "Return what SESSION is called among the choices.
NAMES is a hash table of what those seen so far are called, by their ids:
whatever is listed meanwhile, a name stays with its session.  A title
that there was already gets a number."
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
  "Return the sessions by what they are called: an alist (NAME . SESSION).
NAMES is as for `qwen-companion-chat-sessions--name'."
  (mapcar (lambda (session)
            (cons (qwen-companion-chat-sessions--name session names) session))
          (qwen-companion-chat-sessions--all)))

(defun qwen-companion-chat-sessions--table (names string predicate action)
  "Complete STRING to what a session is called; see `try-completion'.
PREDICATE and ACTION are as usual, NAMES is as for
`qwen-companion-chat-sessions--name'.  What the daemon lists meanwhile
is among the choices."
  (if (eq action 'metadata)
      (let ((choices (qwen-companion-chat-sessions--choices names)))
        `(metadata
          (category . qwen-companion-chat)
          (display-sort-function . ,#'identity)
          (annotation-function
           . ,(lambda (name)
                (qwen-companion-chat-sessions--annotation (cdr (assoc name choices)))))))
    (complete-with-action action (qwen-companion-chat-sessions--choices names)
                          string predicate)))

(defun qwen-companion-chat-sessions--annotation (session)
  "Return what is said beside the name of SESSION in a list."
  (let ((clients (qwen-companion-daemon-listed-clients session)))
    (propertize
     (concat "  " (string-join
                   (delete "" (list (qwen-companion-chat-sessions--time session)
                                    (qwen-companion-chat-sessions--state session)
                                    (if (and clients (> clients 1))
                                        (format "%d clients" clients)
                                      "")))
                   ", "))
     'face 'completions-annotations)))

(defun qwen-companion-chat-sessions--read ()
  "Return the id of a session that the user chooses, nil for none.
The default is that of the chat used last before the current one."
  (let* ((names (make-hash-table :test #'equal))
         (other (car (remq (current-buffer) (qwen-companion-chat-buffers))))
         (session (and other (qwen-companion-chat-sessions--find
                              (buffer-local-value 'qwen-companion-chat-session-id other))))
         (default (and session (qwen-companion-chat-sessions--name session names)))
         (name (completing-read
                (format-prompt "Chat" default)
                (apply-partially #'qwen-companion-chat-sessions--table names)
                nil t nil nil default)))
    (cl-loop for id being the hash-keys of names using (hash-values called)
             when (equal called name) return id)))

;;;###autoload
(defun qwen-companion-chat-switch ()
  "Go to the chat of a session of the daemon, chosen by its title.
One that is not open here is attached to, or read where it has ended.
The default is the chat that was used last before the current one."
  (interactive)
  (qwen-companion-chat-sessions--watch)
  (let ((id (unwind-protect
                (progn
                  (qwen-companion-chat-sessions--ask)
                  (qwen-companion-chat-sessions--read))
              (qwen-companion-chat-sessions--unwatch))))
    (unless id
      (user-error "There is no such session"))
    (qwen-companion-chat-sessions--visit id)))

(provide 'qwen-companion-chat-sessions)
;;; qwen-companion-chat-sessions.el ends here
