;;; qwen-companion-test-helper.el --- What the tests share  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'cl-lib)
(require 'ert)
(require 'qwen-companion)

;; Each file that is visited would start git, for the mode line.
(remove-hook 'find-file-hook #'vc-refresh-state)

;; Texts that a test edits outside of a project of its own are not auto-saved.
(setq qwen-companion-drafts-directory "/dev/null/drafts/")

(defun qwen-companion-test-write (file text &optional seconds)
  "Write TEXT to FILE, in a directory that may be new, as a CLI does.
With SECONDS, its time is that much later than now."
  (let ((coding-system-for-write 'utf-8-unix))
    (make-directory (file-name-directory (expand-file-name file)) t)
    (write-region text nil file nil 'silent))
  (when seconds
    (set-file-times file (time-add nil seconds))))

(defmacro qwen-companion-test-with-files (files &rest body)
  "Run BODY in a new directory with FILES, a list of (NAME TEXT).
The directory is the value of `default-directory' and a git project."
  (declare (indent 1) (debug t))
  `(let* ((directory (file-name-as-directory
                      (file-truename (make-temp-file "qwen-companion-test-" t))))
          (default-directory directory)
          (qwen-companion-drafts-directory
           (concat (directory-file-name directory) "-drafts/"))
          (create-lockfiles nil)
          (make-backup-files nil)
          ;; Some commands set these, and nobody would set them back here.
          (this-command nil)
          (last-command nil)
          (before (buffer-list)))
     (unwind-protect
         (progn
           (make-directory ".git")
           (pcase-dolist (`(,name ,text) ,files)
             (qwen-companion-test-write name text))
           ,@body)
       (dolist (buffer (buffer-list))
         ;; An indirect buffer goes with its base.
         (when (and (buffer-live-p buffer) (not (memq buffer before)))
           (with-current-buffer buffer
             (set-buffer-modified-p nil)
             (setq kill-buffer-hook nil)
             ;; One that a failed test leaves would be asked about, and be in
             ;; the way of the next tests.
             (when-let* ((process (get-buffer-process buffer)))
               (delete-process process))
             (qwen-companion-drafts-forget)
             (kill-buffer))))
       (when (file-directory-p qwen-companion-drafts-directory)
         (delete-directory qwen-companion-drafts-directory t))
       (delete-directory directory t))))

(defvar qwen-companion-test-calls nil
  "Messages sent to the Python process, (METHOD . PAYLOAD), newest first.")

(defun qwen-companion-test-server (&rest slots)
  "Return a value for `qwen-companion-backend--server' with SLOTS.
That is a property list of slots and values; the spool is the present one
unless it is among them."
  (apply #'qwen-companion-backend--make-server
         (append slots (list :spool (qwen-companion-backend-spool)))))

(defmacro qwen-companion-test-with-backend (&rest body)
  "Run BODY as if a Python process were connected and a frame visible.
Calls are collected in `qwen-companion-test-calls'."
  (declare (indent 0) (debug t))
  `(let ((qwen-companion-test-calls nil)
         (qwen-companion-backend--noticed nil)
         (qwen-companion-backend--requests nil)
         (qwen-companion-backend--server
          (qwen-companion-test-server
           :spool (file-name-as-directory (make-temp-file "qwen-companion-spool-" t)))))
     (unwind-protect
         (cl-letf (((symbol-function 'qwen-companion-backend-call)
                    (lambda (method payload)
                      (push (cons method payload) qwen-companion-test-calls)
                      t))
                   ((symbol-function 'qwen-companion-backend-connected-p) #'always)
                   ((symbol-function 'qwen-companion-context-frame-p) #'always))
           ,@body)
       (qwen-companion-proposal-end-all)
       (qwen-companion-disk-forget-all)
       ;; What would catch the next key.
       (setq overriding-terminal-local-map nil)
       (qwen-companion-context-disable)
       (delete-directory (qwen-companion-backend-spool) t))))

(defmacro qwen-companion-test-with-state (state &rest body)
  "Run BODY while the companion is in STATE, a symbol."
  (declare (indent 1) (debug t))
  `(let ((qwen-companion-backend--state ,state))
     ,@body))

(defmacro qwen-companion-test-with-failure (reason &rest body)
  "Run BODY while the companion does not run, for REASON."
  (declare (indent 1) (debug t))
  `(let ((qwen-companion-backend--state 'error)
         (qwen-companion-backend--failure ,reason))
     ,@body))

(defmacro qwen-companion-test-with-sessions (sessions &rest body)
  "Run BODY while the CLIs of SESSIONS are connected."
  (declare (indent 1) (debug t))
  `(let ((qwen-companion-backend--server (qwen-companion-test-server :sessions ,sessions)))
     ,@body))

(defun qwen-companion-test-set-sessions (sessions)
  "From now on the CLIs of SESSIONS are connected."
  (setf (qwen-companion-backend--server-sessions qwen-companion-backend--server) sessions))

(defmacro qwen-companion-test-with-roots (roots &rest body)
  "Run BODY while CLIs are told of ROOTS, and can connect if there are any."
  (declare (indent 1) (debug t))
  `(let* ((roots ,roots)
          (qwen-companion-roots--answer (list :roots roots :reachable (and roots t))))
     ,@body))

(defun qwen-companion-test-sent (method)
  "Return the payloads sent with METHOD, oldest first."
  (nreverse
   (cl-loop for (name . payload) in qwen-companion-test-calls
            when (eq name method) collect payload)))

(defun qwen-companion-test-text-in (payload)
  "Return the text in PAYLOAD as the Python process reads it, or nil.
Its file, if it has one, stays."
  (let* ((file (plist-get payload :text-file))
         (text (if file
                   (qwen-companion-test-file-text file)
                 (plist-get payload :text))))
    (if (and text (plist-get payload :crlf))
        (string-replace "\n" "\r\n" text)
      text)))

(defconst qwen-companion-test-limit
  (string-to-number (or (getenv "QWEN_COMPANION_TEST_LIMIT") "120"))
  "Seconds to wait for an expected event; see tests/helpers/limit.py.")

(defmacro qwen-companion-test-wait-for (condition &optional seconds)
  "Wait until CONDITION is non-nil and return its value.
Events are handled meanwhile; fail after SECONDS, by default the limit
of tests/helpers/limit.py, which only ends a hang."
  (declare (debug t))
  `(let ((deadline (+ (float-time) (or ,seconds qwen-companion-test-limit)))
         value)
     (while (not (setq value ,condition))
       (when (> (float-time) deadline)
         (ert-fail (list "Waited in vain for" ',condition)))
       ;; Not `accept-process-output': file notifications are input events.
       (read-event nil nil 0.02))
     value))

(defmacro qwen-companion-test-with-process (&rest body)
  "Run BODY in a home and with temporary files of its own; mode off after."
  (declare (indent 0) (debug t))
  `(qwen-companion-test-with-files nil
     (let* ((home (expand-file-name "home" default-directory))
            (process-environment
             (append (list (concat "HOME=" home)
                           (concat "TMPDIR=" default-directory)
                           "QWEN_HOME")
                     process-environment))
            (temporary-file-directory default-directory)
            (inhibit-message t))
       (make-directory home)
       (unwind-protect
           (progn ,@body)
         (qwen-companion-mode -1)
         (qwen-companion-test-wait-for
          (null (qwen-companion-test-processes)))))))

(defun qwen-companion-test-process ()
  "Return the Python process that is connected or starts."
  (qwen-companion-backend--process))

(defun qwen-companion-test-secrets ()
  "Return the secrets of CLIs and the process: (TOKEN SECRET)."
  (list qwen-companion-backend--token qwen-companion-backend--secret))

(defun qwen-companion-test-take-port ()
  "Let another program take the port in the place of our process; return it."
  (setf (qwen-companion-backend--server-port qwen-companion-backend--server) nil)
  (let ((squatter (make-network-process :name "squatter" :server t :host "127.0.0.1"
                                        :family 'ipv4 :service t :noquery t)))
    (setf (qwen-companion-backend--server-port qwen-companion-backend--server) (process-contact squatter :service))
    squatter))

(defmacro qwen-companion-test-with-ping-limit (limit &rest body)
  "Run BODY where a process is asked whether it lives as LIMIT says."
  (declare (indent 1) (debug t))
  `(let ((qwen-companion-backend--ping-limit ,limit))
     ,@body))

(defun qwen-companion-test-ping-seconds ()
  "Return the seconds after which a process that hangs is replaced."
  (* (car qwen-companion-backend--ping-limit) (1+ (cdr qwen-companion-backend--ping-limit))))

(defun qwen-companion-test-wait-for-unanswered (count)
  "Wait until the process has COUNT questions to answer whether it lives."
  (qwen-companion-test-wait-for
   (eql count (qwen-companion-backend--connection-unanswered qwen-companion-backend--connection))))

(defmacro qwen-companion-test-with-restart-limit (limit &rest body)
  "Run BODY where a process that dies is replaced as often as LIMIT says."
  (declare (indent 1) (debug t))
  `(let ((qwen-companion-backend--restart-limit ,limit))
     ,@body))

(defun qwen-companion-test-context-update ()
  "Tell the CLIs of the open files, as a little idle time does."
  (qwen-companion-context--update))

(defun qwen-companion-test-show-next ()
  "Show the next review that waits, as a little idle time does."
  (qwen-companion-review--show-next))

(defun qwen-companion-test-written-p ()
  "Say whether all files have been written that are to be."
  (null qwen-companion-disk--writes))

(defun qwen-companion-test-disk-event (path)
  "Have PATH looked at, as after an event of its directory."
  (qwen-companion-disk--check path))

(defun qwen-companion-test-watched ()
  "Return the directories that are watched."
  (hash-table-keys qwen-companion-disk--directories))

(defun qwen-companion-test-notified-p (&optional directory)
  "Say whether events of DIRECTORY, by default the current one, come."
  (when-let* ((watch (gethash (or directory default-directory) qwen-companion-disk--directories)))
    (qwen-companion-disk--directory-descriptor watch)))

(defmacro qwen-companion-test-with-polling (seconds pause &rest body)
  "Run BODY where files without a watch are looked at every SECONDS.
A watch with a burst of events is put aside for PAUSE in seconds."
  (declare (indent 2) (debug t))
  `(let ((qwen-companion-disk--poll-intervals (cons ,seconds ,pause)))
     ,@body))

(defun qwen-companion-test-review-awaits-p ()
  "Say whether a proposal is to be shown by itself, at a good moment."
  qwen-companion-review--timers)

(defun qwen-companion-test-processes ()
  "Return our processes that are alive."
  (cl-remove-if-not (lambda (process)
                      (string-match-p "\\`\\(qwen-companion\\|epc\\)" (process-name process)))
                    (process-list)))

(defun qwen-companion-test-ticking ()
  "Return the timers that redraw a buffer as long as it is seen."
  (cl-remove #'qwen-companion-timers--tick timer-list :key #'timer--function :test-not #'eq))

(defun qwen-companion-test-set-clock (seconds)
  "Let it look to all timers as if the clock had been set by SECONDS.
Forward, it is as after the machine has slept."
  (setq qwen-companion-timers--seen (- (float-time) seconds))
  (dolist (timer (copy-sequence timer-list))
    (cancel-timer timer)
    (timer-set-time timer (time-subtract (timer--time timer) seconds) (timer--repeat-delay timer))
    (timer-activate timer)))

(defun qwen-companion-test-propose (file text &rest more)
  "Let a CLI propose TEXT for FILE; return the proposal.
MORE are further keys and values of the payload."
  (let ((path (expand-file-name file)))
    (should-not
     (qwen-companion-proposal-on-open
      (append more (list :id (symbol-name (gensym "id")) :session "session-1"
                         :client "qwen" :path path
                         :digest (secure-hash 'sha256 (encode-coding-string text 'utf-8-unix))
                         :text text))))
    (car (last (qwen-companion-proposals)))))

(defun qwen-companion-test-close (proposal &rest more)
  "Let the CLI close PROPOSAL; MORE are further keys and values of the payload."
  (qwen-companion-proposal-on-close (append (list :id (qwen-companion-proposal-id proposal)) more)))

(defun qwen-companion-test-orphan (proposal)
  "Let the CLI of PROPOSAL go away."
  (qwen-companion-proposal-on-orphan (list :id (qwen-companion-proposal-id proposal))))

(defun qwen-companion-test-same-windows-p (configuration)
  "Return non-nil when the windows are those of CONFIGURATION."
  (funcall (if (fboundp 'window-configuration-equal-p)
               #'window-configuration-equal-p
             'compare-window-configurations)
           configuration (current-window-configuration)))

(defmacro qwen-companion-test-refused (pattern &rest body)
  "Check that BODY signals a `user-error' with a text that matches PATTERN."
  (declare (indent 1) (debug t))
  `(should (string-match-p ,pattern (cadr (should-error (progn ,@body) :type 'user-error)))))

(defmacro qwen-companion-test-messages (&rest body)
  "Run BODY and return its messages in the echo area, one string."
  (declare (indent 0) (debug t))
  `(let (said)
     (cl-letf (((symbol-function 'message)
                (lambda (format &rest arguments)
                  (when format
                    (push (apply #'format format arguments) said)))))
       ,@body)
     ;; Not as the value of the form: Emacs 30 warns where that is not used.
     (setq said (mapconcat #'identity (nreverse said) "\n"))))

(defmacro qwen-companion-test-counting (variable function &rest body)
  "Run BODY where VARIABLE is how often FUNCTION, a symbol, has been called."
  (declare (indent 2) (debug t))
  `(let* ((,variable 0)
          (count-call (lambda (&rest _) (cl-incf ,variable))))
     (advice-add ,function :before count-call)
     (unwind-protect
         (progn ,@body)
       (advice-remove ,function count-call))))

(defun qwen-companion-test-candidates (table)
  "Return the candidates of TABLE in order: (CATEGORY (NAME . ANNOTATION)...)."
  (let* ((metadata (completion-metadata "" table nil))
         (annotate (completion-metadata-get metadata 'annotation-function))
         (sort (completion-metadata-get metadata 'display-sort-function)))
    (cons (completion-metadata-get metadata 'category)
          (mapcar (lambda (name) (cons name (and annotate (funcall annotate name))))
                  (funcall (or sort #'identity) (all-completions "" table))))))

(defun qwen-companion-test-undo ()
  "Undo once in the current buffer, as a command of its own."
  (let (last-command this-command)
    (undo-boundary)
    (undo)
    (undo-boundary)))

(defun qwen-companion-test-header (&optional buffer)
  "Return the header line of BUFFER, the current one by default, as a string.
What stands for itself in it is as it is there.  The user is in BUFFER."
  (with-current-buffer (or buffer (current-buffer))
    ;; Batch mode never redisplays, so that Emacs does not know.
    (cl-letf (((symbol-function 'qwen-companion-review--user-buffer) #'current-buffer))
      (qwen-companion-test-header-from-elsewhere))))

(defun qwen-companion-test-header-from-elsewhere ()
  "Return the header line of the current buffer, wherever the user is."
  (mapconcat (lambda (part)
               (pcase part
                 ((pred stringp) part)
                 ((pred symbolp) (or (symbol-value part) ""))
                 (`(:eval ,form) (or (eval form t) ""))))
             (ensure-list header-line-format) ""))

(defun qwen-companion-test-first-row ()
  "Go to the first row of a list, below the names of its columns."
  (goto-char (point-min))
  (forward-line))

(defun qwen-companion-test-header-p (regexp &optional buffer)
  "Return non-nil when REGEXP matches in the header line of BUFFER, see above."
  (string-match-p regexp (qwen-companion-test-header buffer)))

(defun qwen-companion-test-click (button text)
  "Click TEXT in the selected window with BUTTON, a symbol; return the event.
If nothing is bound to it, only return it."
  (set-buffer (window-buffer))
  (let* ((place (save-excursion
                  (goto-char (point-min))
                  (search-forward text)
                  (match-beginning 0)))
         (event (list button (list (selected-window) place '(0 . 0) 0 nil place
                                   '(0 . 0) nil '(0 . 0) '(1 . 1))))
         (command (key-binding (vector button))))
    (when command
      (funcall-interactively command event))
    event))

(defun qwen-companion-test-context-menu (text)
  "Return the titles in the menu of `context-menu-mode' for a click on TEXT."
  (let (titles)
    (map-keymap (lambda (_ item)
                  (push (if (eq 'menu-item (car-safe item)) (cadr item) (car-safe item))
                        titles))
                (context-menu-map (qwen-companion-test-click 'down-mouse-3 text)))
    titles))

(defun qwen-companion-test-buffers-with (text)
  "Return the names of the buffers that hold TEXT, hidden ones too."
  (cl-loop for buffer in (buffer-list)
           when (with-current-buffer buffer
                  (save-excursion
                    (save-restriction
                      (widen)
                      (goto-char (point-min))
                      (search-forward text nil t))))
           collect (buffer-name buffer)))

(defun qwen-companion-test-go-to (text)
  "Put point behind the first TEXT in the current buffer."
  (goto-char (point-min))
  (search-forward text))

(defun qwen-companion-test-file-bytes (file)
  "Return the bytes of FILE, a unibyte string."
  (with-temp-buffer
    (set-buffer-multibyte nil)
    (insert-file-contents-literally file)
    (buffer-string)))

(defun qwen-companion-test-file-text (file)
  "Return the bytes of FILE decoded as UTF-8, line ends as they are."
  (with-temp-buffer
    (let ((coding-system-for-read 'utf-8-unix))
      (insert-file-contents file))
    (buffer-string)))

(defun qwen-companion-test--call-on-files (texts program &rest arguments)
  "Call PROGRAM with ARGUMENTS and files that hold TEXTS, a list of strings.
What it writes is inserted into the current buffer; return its status."
  (let ((default-directory temporary-file-directory)
        (coding-system-for-write 'utf-8-emacs-unix)
        (coding-system-for-read 'utf-8-unix)
        (files (mapcar (lambda (_) (make-temp-file "text-")) texts)))
    (cl-mapc (lambda (file text) (write-region text nil file nil 'silent)) files texts)
    (prog1 (apply #'call-process program nil '(t nil) nil (append arguments files))
      (mapc #'delete-file files))))

(defun qwen-companion-test-compare (old new)
  "Return the hunks of the buffers OLD and NEW, by the program diff.
In the form of `qwen-companion-merge-compare', for which this stands in."
  (let ((texts (list (qwen-companion-buffers-text old) (qwen-companion-buffers-text new)))
        hunks)
    (with-temp-buffer
      (qwen-companion-test--call-on-files texts "diff" "--text" "--unified=0")
      (goto-char (point-min))
      (while (re-search-forward
              "^@@ -\\([0-9]+\\),?\\([0-9]*\\) \\+\\([0-9]+\\),?\\([0-9]*\\) @@" nil t)
        (pcase-let ((`(,old ,old-count ,new ,new-count)
                     (mapcar (lambda (group)
                               (let ((text (match-string group)))
                                 (if (string-empty-p text) 1
                                   (string-to-number text))))
                             '(1 2 3 4))))
          (push (list (if (zerop old-count) (1+ old) old) old-count
                      (if (zerop new-count) (1+ new) new) new-count)
                hunks))))
    (nreverse hunks)))

(defun qwen-companion-test-compare-now (old new callback)
  "Stand in for `qwen-companion-merge-compare' of OLD and NEW.
Call CALLBACK at once."
  (funcall callback (qwen-companion-test-compare old new)))

(defun qwen-companion-test-merge (base mine theirs labels)
  "Return the answer of `qwen-companion-merge-texts', by git's merge.
BASE, MINE, THEIRS and LABELS are as there."
  (cl-flet ((text (it) (if (bufferp it) (qwen-companion-buffers-text it) it)))
    (let* ((mine (text mine))
           (theirs (text theirs))
           (conflicts 0)
           (result (if (null base)
                       theirs
                     (with-temp-buffer
                       (setq conflicts
                             (apply #'qwen-companion-test--call-on-files
                                    (list mine (text base) theirs) "git" "merge-file" "-p" "--diff3"
                                    (mapcan (lambda (label) (list "-L" label))
                                            (copy-sequence labels))))
                       (buffer-string))))
           (prefix (length (fill-common-string-prefix mine result)))
           (suffix (min (length (fill-common-string-prefix (reverse mine) (reverse result)))
                        (- (min (length mine) (length result)) prefix))))
      (make-qwen-companion-merge-result
       :edits (if (equal mine result)
                  []
                (vector prefix (- (length mine) suffix) prefix (- (length result) suffix)))
       :text (unless (equal result theirs) result)
       :conflicts conflicts))))

(defun qwen-companion-test-merge-now (base mine theirs labels callback)
  "Stand in for `qwen-companion-merge-texts'; call CALLBACK at once.
BASE, MINE, THEIRS and LABELS are as there."
  (funcall callback (qwen-companion-test-merge base mine theirs labels)))

;;; What a user does and is told

(defmacro qwen-companion-test-said (regexp &rest body)
  "Check that the messages of BODY in the echo area match REGEXP."
  (declare (indent 1) (debug t))
  `(should (string-match-p ,regexp (qwen-companion-test-messages ,@body))))

(defmacro qwen-companion-test-silent (&rest body)
  "Check that BODY has no message in the echo area."
  (declare (indent 0) (debug t))
  `(should (equal "" (qwen-companion-test-messages ,@body))))

(defun qwen-companion-test--answerer (answer)
  "Return ANSWER if it is a function, else one that returns it."
  (if (functionp answer) answer (lambda (&rest _) answer)))

(defmacro qwen-companion-test-answering (answer &rest body)
  "Run BODY as if the user gave ANSWER to each question that wants yes or no.
ANSWER may be a function of the question."
  (declare (indent 1) (debug t))
  `(cl-letf* (((symbol-function 'y-or-n-p) (qwen-companion-test--answerer ,answer))
              ((symbol-function 'yes-or-no-p) (symbol-function 'y-or-n-p)))
     ,@body))

(defmacro qwen-companion-test-choosing (text &rest body)
  "Run BODY as if the user gave TEXT wherever one is read.
TEXT may be a function of the arguments of `completing-read' or `read-string'."
  (declare (indent 1) (debug t))
  `(cl-letf* (((symbol-function 'completing-read) (qwen-companion-test--answerer ,text))
              ((symbol-function 'read-string) (symbol-function 'completing-read)))
     ,@body))

(defun qwen-companion-test-comment (line comment)
  "Note COMMENT on the LINE of the review in the selected window."
  (qwen-companion-test-go-to line)
  (qwen-companion-test-choosing comment
    (call-interactively #'qwen-companion-diff-comment)))

(defun qwen-companion-test-press (&rest keys)
  "Press KEYS in the selected window."
  (dolist (key keys)
    (set-buffer (window-buffer))
    (call-interactively (key-binding (kbd key)))
    (set-buffer (window-buffer))))

(defun qwen-companion-test-quits-p (key)
  "Press KEY and say whether the user has quit by it, as after no to a question."
  (eq 'quit (condition-case nil
                (qwen-companion-test-press key)
              (quit 'quit))))

(defun qwen-companion-test-append (text &optional buffer)
  "Type TEXT at the end of BUFFER, by default the current one."
  (with-current-buffer (or buffer (current-buffer))
    (goto-char (point-max))
    (insert text)))

(defun qwen-companion-test-buffer-text (buffer)
  "Return the text of BUFFER that is not narrowed away."
  (with-current-buffer buffer (buffer-string)))

(defun qwen-companion-test-selected ()
  "Return the name of the buffer in the selected window."
  (buffer-name (window-buffer)))

(defun qwen-companion-test-lighter ()
  "Return the lighter of the mode, or nil while the mode is off."
  (qwen-companion--lighter))

(defun qwen-companion-test-shown ()
  "Return the names of the buffers in the selected frame, in order."
  (mapcar (lambda (window) (buffer-name (window-buffer window)))
          (window-list nil 'no-minibuffer (frame-first-window))))

;;; Proposals

(defun qwen-companion-test-show (proposal &optional select)
  "Show PROPOSAL as by itself, or with SELECT as by command."
  (qwen-companion-review--display proposal select))

(defmacro qwen-companion-test-editing (proposal &rest body)
  "Run BODY in the buffer of PROPOSAL, where keys type as after `e'."
  (declare (indent 1) (debug t))
  `(with-current-buffer (qwen-companion-proposal-buffer ,proposal)
     (let ((inhibit-read-only t))
       ,@body)))

(defun qwen-companion-test-edit (proposal text)
  "Type TEXT at the end of PROPOSAL, as a user does."
  (qwen-companion-test-editing proposal
    (qwen-companion-test-append text)))

(defun qwen-companion-test-deliver (proposal)
  "Let the CLI of PROPOSAL have got the outcome."
  (qwen-companion-proposal-on-delivered (list :id (qwen-companion-proposal-id proposal))))

(defun qwen-companion-test-outcomes ()
  "Return the outcomes sent: (OUTCOME TEXT), oldest first."
  (mapcar (lambda (payload) (list (plist-get payload :outcome) (qwen-companion-test-text-in payload)))
          (qwen-companion-test-sent 'outcome)))

(defmacro qwen-companion-test-with-proposals (files &rest body)
  "Run BODY with FILES and a connected companion; nothing opens by itself."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-files ,files
     (qwen-companion-test-with-backend
       (let ((qwen-companion-diff-arrival 'command)
             (inhibit-message t))
         ,@body))))

(defmacro qwen-companion-test-with-reviews (files &rest body)
  "Run BODY with FILES and a connected companion, in an orderly frame.
Reviews are shown by command, and texts are compared and merged at once."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-proposals ,files
     (cl-letf (((symbol-function 'qwen-companion-merge-compare) #'qwen-companion-test-compare-now)
               ((symbol-function 'qwen-companion-merge-texts) #'qwen-companion-test-merge-now))
       (set-frame-size (selected-frame) 120 40)
       (save-window-excursion
         (delete-other-windows)
         (switch-to-buffer (get-buffer-create "*terminal*"))
         ,@body))))

(defmacro qwen-companion-test-with-terminal (id &rest body)
  "Run BODY with the buffer *terminal* as that of the CLI with the session ID."
  (declare (indent 1) (debug t))
  `(let* ((process (make-process :name "terminal" :buffer "*terminal*" :noquery t
                                 :command '("sleep" "1000")))
          (qwen-companion-backend--server
           (qwen-companion-test-server
            :sessions (list (list :id ,id :ancestors (list (process-id process)))))))
     (unwind-protect
         (progn ,@body)
       (delete-process process))))

;;; Language servers

(defconst qwen-companion-test--unpacked
  (expand-file-name "../../.build/lisp"
                    (file-name-directory (or load-file-name buffer-file-name)))
  "Directory of the packages that scripts/setup unpacks for single tests.")

(defun qwen-companion-test-load (library)
  "Load the LIBRARY of Emacs, of a package, or else of an unpacked package.
Return nil when there is none."
  (or (require library nil t)
      (let ((load-path (append (file-expand-wildcards
                                (expand-file-name "*" qwen-companion-test--unpacked))
                               load-path)))
        (require library nil t))))

(declare-function eglot "ext:eglot" t)
(declare-function eglot--guess-contact "ext:eglot" (&optional interactive))
(defvar eglot-autoreconnect)
(defvar eglot-autoshutdown)
(defvar eglot-connect-timeout)
(defvar eglot-server-programs)
(defvar eglot-sync-connect)
(defvar jsonrpc-default-request-timeout)
(defvar project-find-functions)
(defvar qwen-companion-python)

(defun qwen-companion-test-eglot (program &rest arguments)
  "Have eglot ask PROGRAM about the current buffer until that is killed.
PROGRAM, called with ARGUMENTS, is a language server: an absolute name, or
one in the directory of the tests' Python."
  (let ((eglot-sync-connect t)
        (eglot-connect-timeout qwen-companion-test-limit)
        ;; The process ends with its buffer; one that has lasted for three
        ;; seconds by then would be started anew, in the middle of the next test.
        (eglot-autoreconnect nil)
        (eglot-server-programs
         (list (cons major-mode
                     (cons (expand-file-name program (file-name-directory qwen-companion-python))
                           arguments))))
        ;; Git would be asked for the files of a project that has no commits.
        (project-find-functions nil))
    (apply #'eglot (eglot--guess-contact)))
  ;; That of questions: a server may begin to read files only now.
  (setq jsonrpc-default-request-timeout qwen-companion-test-limit)
  ;; A hook of ours would be too late in Emacs 30, whose eglot then has no more
  ;; changes of the buffer to look for.
  (setq-local eglot-autoshutdown t))

(defun qwen-companion-test-language-server (&rest options)
  "Have eglot ask a server with OPTIONS about the current buffer.
They are those of language_server.py, a property list for JSON."
  (qwen-companion-test-eglot
   "python"
   (expand-file-name "language_server.py"
                     (file-name-directory (locate-library "qwen-companion-test-helper")))
   (json-serialize (append options '(:capabilities nil)))))

(provide 'qwen-companion-test-helper)
;;; qwen-companion-test-helper.el ends here
